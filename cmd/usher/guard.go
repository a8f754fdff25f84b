// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/usher-dev/usher/internal/guard"
)

// guardSettings are the flags of the guard.
type guardSettings struct {
	service             string
	port                int
	externalCertificate bool
	cloneSetUsers       string
}

func (g *guardSettings) bind(flags *flag.FlagSet) {
	flags.StringVar(&g.service, "guard-service", "", "`NAMESPACE/NAME` of the Service of the guard; its Secret and its ValidatingWebhookConfiguration have that name too")
	flags.IntVar(&g.port, "guard-port", 9443, "`port` that the guard serves on")
	flags.BoolVar(&g.externalCertificate, "guard-external-certificate", false, "the guard's Secret and caBundle are somebody else's work, such as cert-manager's")
	flags.StringVar(&g.cloneSetUsers, "guard-cloneset-users", "", "`users` that CloneSet controllers act as besides this process, separated by commas")
}

func (g *guardSettings) check(runs bool) error {
	if !runs {
		if g.service != "" {
			return errors.New("--guard-service needs guard among --controllers")
		}
		return nil
	}
	if namespace, name, ok := strings.Cut(g.service, "/"); !ok || namespace == "" || name == "" {
		return fmt.Errorf("--guard-service: %q is not NAMESPACE/NAME; the guard needs it", g.service)
	}
	return nil
}

func (g *guardSettings) setup(ctx context.Context, mgr ctrl.Manager) error {
	namespace, name, _ := strings.Cut(g.service, "/")
	return guard.Setup(ctx, mgr, guard.Options{
		Service: types.NamespacedName{Namespace: namespace, Name: name}, Port: g.port,
		ExternalCertificate: g.externalCertificate,
		CloneSetUsers:       strings.FieldsFunc(g.cloneSetUsers, func(r rune) bool { return r == ',' }),
	})
}
