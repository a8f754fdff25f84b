// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/usher-dev/usher/internal/registration/responder"
)

// oldestKubernetes is the oldest version that Usher supports: "make versions" runs the
// stories on it.
const oldestKubernetes = "1.33"

// askFor bounds each question about the API server: Usher starts without an answer.
const askFor = 10 * time.Second

// checkServer asks for the version and the resources of the API server, and warns about features that
// will not work on it. Usher runs anyway, with the features that do work.
func (s *settings) checkServer(ctx context.Context, config *rest.Config, logger logr.Logger) apiServer {
	config = rest.CopyConfig(config)
	config.Timeout = askFor
	found, err := askServer(config)
	if err != nil {
		logger.Info("Cannot read the version of the API server", "reason", err.Error())
		return found
	}
	for _, warning := range found.warnings(s.runs(halfCloneSet)) {
		logger.Info("Warning: " + warning)
	}
	if s.runs(halfRegistration) {
		found.evictions = askEvictions(ctx, config, logger)
	}
	return found
}

// askEvictions reports whether Usher can be a responder of Kubernetes' evictions. Most API servers serve none,
// and nothing is said of that.
func askEvictions(ctx context.Context, config *rest.Config, logger logr.Logger) bool {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	served, allowed, err := responder.Served(ctx, config)
	switch {
	case err != nil:
		logger.Info("Cannot tell whether to answer evictions of lifecycle.k8s.io: Usher does not, until it starts again",
			"reason", err.Error())
	case served && !allowed:
		logger.Info("The API server serves evictions of lifecycle.k8s.io, and Usher may not answer them: " +
			"it lacks the role usher-evictions " +
			"(evictions.enabled of the chart)")
	}
	return allowed
}

// apiServer has the properties of an API server that matter here.
type apiServer struct {
	version string
	// evictions means that it serves evictions of lifecycle.k8s.io, and lets Usher answer them.
	evictions bool
	// noResize means that it has no subresource pods/resize.
	noResize bool
}

func askServer(config *rest.Config) (apiServer, error) {
	asked, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return apiServer{}, err
	}
	info, err := asked.ServerVersion()
	if err != nil {
		return apiServer{}, err
	}
	resizes, err := discovery.IsResourceEnabled(asked, corev1.SchemeGroupVersion.WithResource("pods/resize"))
	if err != nil {
		return apiServer{}, err
	}
	return apiServer{version: info.GitVersion, noResize: !resizes}, nil
}

// imageVolumes reports whether Pods can mount images: by default since Kubernetes 1.35.
func (s apiServer) imageVolumes() bool {
	found, err := version.ParseGeneric(s.version)
	return err == nil && !found.LessThan(version.MustParseGeneric("1.35"))
}

// warnings returns texts that explain what will not work, and what to do.
func (s apiServer) warnings(cloneSets bool) []string {
	var list []string
	found, err := version.ParseGeneric(s.version)
	switch {
	case err != nil:
		list = append(list, fmt.Sprintf("the API server's version %q cannot be read; Usher supports Kubernetes %s and newer", s.version, oldestKubernetes))
	case found.LessThan(version.MustParseGeneric(oldestKubernetes)):
		list = append(list, fmt.Sprintf("the API server has Kubernetes %s, and Usher supports %s and newer: it runs, untried; upgrade the cluster", s.version, oldestKubernetes))
	}
	if cloneSets && s.noResize {
		list = append(list, "the API server has no subresource pods/resize, so no running Pod can get other cpu or memory: "+
			"CloneSets of type InPlaceIfPossible recreate it for that, and those of type InPlaceOnly say so in the condition FailedUpdate; "+
			"when the feature gate InPlacePodVerticalScaling is on (by default since Kubernetes 1.33), restart Usher")
	}
	return list
}
