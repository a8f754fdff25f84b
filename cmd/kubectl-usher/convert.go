// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/resource"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/convert"
	"github.com/usher-dev/usher/internal/printable"
)

// convertOptions are the flags of convert.
type convertOptions struct {
	filename, to string
	strict       bool
}

func convertCommand(s *session) *cobra.Command {
	var o convertOptions
	c := command("convert", cobra.NoArgs, nil, func(_ context.Context, _ []string) error { return s.convert(&o) })
	flags := c.Flags()
	flags.StringVarP(&o.filename, "filename", "f", "", "`file` with CloneSets and other objects; - reads standard input")
	flags.StringVar(&o.to, "to", "v1alpha1", "`version` to convert to: v1alpha1, which Usher serves, or v1beta1")
	flags.BoolVar(&o.strict, "strict", false, "print nothing if something would be lost, and end with exit code 1")
	completesFlag(c, "to", func(context.Context, []string, string) []string { return []string{"v1alpha1", "v1beta1"} })
	return c
}

// convert prints the objects of a file, CloneSets in the other version, and on standard error what is
// lost. It asks no cluster.
func (s *session) convert(o *convertOptions) error {
	if o.filename == "" {
		return errors.New("say which file to convert: -f FILE, or -f - for standard input")
	}
	infos, err := resource.NewBuilder(s.flags).Unstructured().Local().Flatten().
		FilenameParam(false, &resource.FilenameOptions{Filenames: []string{o.filename}}).Do().Infos()
	if err != nil {
		return fmt.Errorf("read %s: %w", o.filename, err)
	}
	var documents, losses []string
	for _, info := range infos {
		document, lost, err := converted(info.Object.(*unstructured.Unstructured), o.to)
		if err != nil {
			return err
		}
		documents, losses = append(documents, document), append(losses, lost...)
	}
	for _, loss := range losses {
		put(s.ErrOut, printable.Line(loss)+"\n")
	}
	if o.strict && len(losses) > 0 {
		return exitCode(1)
	}
	put(s.Out, strings.Join(documents, "---\n"))
	return nil
}

// converted returns an object as YAML, and what the conversion loses. Objects other than CloneSets stay
// as they are.
func converted(object *unstructured.Unstructured, to string) (document string, lost []string, err error) {
	out := object.Object
	if convert.Is(out) {
		if out, lost, err = convert.CloneSet(out, "apps.kruise.io/"+to); err != nil {
			return "", nil, fmt.Errorf("convert clone/%s: %w", object.GetName(), err)
		}
	}
	data, err := yaml.Marshal(out)
	if err != nil {
		return "", nil, fmt.Errorf("print %s/%s: %w", object.GetKind(), object.GetName(), err)
	}
	for i := range lost {
		lost[i] = "clone/" + object.GetName() + ": " + lost[i]
	}
	return string(data), lost, nil
}
