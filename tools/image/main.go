// SPDX-License-Identifier: Apache-2.0

// Command image builds container images from Go programs, without a container engine, a
// base image or root.
//
//	image usher   Usher's own image: an OCI layout and archives to load
//	image pack    any static binaries, as an archive to load
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
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
	if len(args) == 0 {
		return errors.New("say what to make: image usher, or image pack REF=BINARY …; -h lists the flags of each")
	}
	switch args[0] {
	case "usher":
		return makeUsher(ctx, args[1:], out)
	case "pack":
		return pack(args[1:], out)
	}
	return fmt.Errorf("%q is neither usher nor pack", args[0])
}

// makeUsher builds Usher for every platform, and writes its image.
func makeUsher(ctx context.Context, args []string, out io.Writer) error {
	var platforms, push, folder string
	source := Source{}
	flags := flag.NewFlagSet("image usher", flag.ContinueOnError)
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
		return fmt.Errorf("unexpected argument %q: image usher takes flags only", flags.Arg(0))
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

// pack puts each binary into its own image, all in one archive.
func pack(args []string, out io.Writer) error {
	var file, platformText string
	flags := flag.NewFlagSet("image pack", flag.ContinueOnError)
	flags.StringVar(&file, "o", "images.tar", "`file` to write the archive to")
	flags.StringVar(&platformText, "platform", "", "what the binaries were built for; default: this machine's, with linux")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("flags: %w", err)
	}
	platform := oci.PlatformOr(v1.Platform{})
	if platformText != "" {
		parsed, err := v1.ParsePlatform(platformText)
		if err != nil {
			return fmt.Errorf("-platform %q: %w", platformText, err)
		}
		platform = *parsed
	}
	if flags.NArg() == 0 {
		return errors.New("name at least one image and its binary: image pack example.com/web:v1=bin/web")
	}
	images := map[string]v1.Image{}
	for _, arg := range flags.Args() {
		ref, binary, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q: want REF=BINARY, such as example.com/web:v1=bin/web", arg)
		}
		image, err := oci.FromBinary(binary, platform)
		if err != nil {
			return fmt.Errorf("image %s: %w", ref, err)
		}
		images[ref] = image
	}
	if err := oci.WriteTar(file, images); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s holds %d images\n", filepath.ToSlash(path.Clean(file)), len(images))
	return err
}
