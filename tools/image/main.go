// SPDX-License-Identifier: Apache-2.0

// Command image builds Usher's container image, without a container engine, a base image
// or root: an OCI layout of all platforms, and an archive to load for each of them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/usher-dev/usher/tools/image/oci"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "image:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var platforms, push, folder string
	source := Source{}
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&source.Root, "root", ".", "`folder` of the project")
	flags.StringVar(&source.Version, "version", "dev", "version, which is also the tag")
	flags.StringVar(&source.Name, "name", "ghcr.io/usher-dev/usher", "name of the image, without a tag")
	flags.StringVar(&folder, "out", "bin/image", "`folder` to write the layout, the archives and the SBOMs to")
	flags.StringVar(&platforms, "platforms", "linux/amd64,linux/arm64", "what to build for")
	flags.StringVar(&push, "push", "", "`host/repository:tag` to push the image to as well")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("flags: %w", err)
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: image takes flags only", flags.Arg(0))
	}
	for _, text := range strings.Split(platforms, ",") {
		platform, err := v1.ParsePlatform(text)
		if err != nil {
			return fmt.Errorf("-platforms %q: %w", text, err)
		}
		source.Platforms = append(source.Platforms, *platform)
	}
	result, err := source.Build(ctx)
	if err != nil {
		return err
	}
	if err := result.Write(folder, out); err != nil {
		return err
	}
	if push == "" {
		return nil
	}
	if err := oci.Push(ctx, push, result.Index); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "pushed %s\n", push)
	return err
}
