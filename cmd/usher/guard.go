// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/guard"
)

// guardSettings are the flags of the guard.
type guardSettings struct {
	service string
	guard.Options
}

func (g *guardSettings) bind(flags *flag.FlagSet) {
	flags.StringVar(&g.service, "guard-service", "", "`NAMESPACE/NAME` of the Service of the guard; its Secret and its ValidatingWebhookConfiguration have that name too")
	flags.IntVar(&g.Port, "guard-port", 9443, "`port` that the guard serves on")
	flags.BoolVar(&g.ExternalCertificate, "guard-external-certificate", false, "the guard's Secret and caBundle are somebody else's work, such as cert-manager's")
	flags.Func("guard-cloneset-users", "`users` that CloneSet controllers act as besides this process, separated by commas", func(text string) error {
		g.CloneSetUsers = strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
		return nil
	})
}

func (g *guardSettings) check(runs bool) error {
	namespace, name, _ := strings.Cut(g.service, "/")
	g.Service = types.NamespacedName{Namespace: namespace, Name: name}
	switch {
	case !runs && g.service != "":
		return errors.New("--guard-service needs guard among --controllers")
	case runs && (namespace == "" || name == ""):
		return fmt.Errorf("--guard-service: %q is not NAMESPACE/NAME; the guard needs it", g.service)
	}
	return nil
}
