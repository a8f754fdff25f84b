// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/test/cluster/process"
	servers "github.com/usher-dev/usher/test/servers/run"
)

// usher is a process that stands in for the container of Usher's Deployment.
type usher struct {
	*process.Process
	story *story
	stop  func()
}

// run does what a kubelet would: it starts Usher with the arguments of the Deployment
// and the token of its service account, and more arguments. Usher ends with the test, or with stop.
func (s *story) run(deployment string, more ...string) *usher {
	s.Helper()
	u := s.start(deployment, more...)
	s.Await("Usher to be the leader", u.leads)
	return u
}

// start does not wait until Usher leads.
func (s *story) start(deployment string, more ...string) *usher {
	s.Helper()
	account, args := s.container(deployment)
	args = slices.DeleteFunc(args, func(arg string) bool { return strings.Contains(arg, "-bind-address=") })
	args = append(args, "--kubeconfig="+s.kubeconfigOf(account), "--leader-election-namespace=usher-system", "--health-probe-bind-address=127.0.0.1:0")
	args = append(append(args, s.reachGuard(args)...), more...)
	u := s.launch(deployment, args)
	if guarded(args) && s.certificate == nil {
		s.certificate = s.startCertificate()
	}
	return u
}

// certificateDeployment makes the guard's certificate, unless cert-manager does.
const certificateDeployment = "usher-certificate"

// startCertificate starts what makes the guard's certificate, with nothing but what its Deployment has.
// It ends with the test, or when Usher is stopped; it is nil if there is no such Deployment.
func (s *story) startCertificate() *usher {
	s.Helper()
	if s.sh("kubectl -n usher-system get deployment %s --ignore-not-found -o name", certificateDeployment) == "" {
		return nil
	}
	account, args := s.container(certificateDeployment)
	return s.launch(certificateDeployment, append(args, "--kubeconfig="+s.kubeconfigOf(account)))
}

// launch starts a process of Usher.
func (s *story) launch(deployment string, args []string) *usher {
	s.Helper()
	p := checktest.Must(process.Start(process.Spec{
		Name: deployment, Path: filepath.Join(tools, "usher"), Args: args, Log: filepath.Join(s.TempDir(), deployment+".log"),
	}))(s)
	u := &usher{Process: p, story: s}
	u.stop = sync.OnceFunc(func() {
		checktest.NoError(s, p.Stop(context.Background(), patience))
		u.forbidden()
	})
	s.Cleanup(u.stop)
	return u
}

// leads reports whether it has the lease and works. The guard's controllers work without.
func (u *usher) leads() bool {
	_, since, ok := strings.Cut(u.output(), "Successfully acquired lease")
	return ok && strings.Contains(since, "Starting workers")
}

// killed kills the leader beside a second replica, which is to lead and work soon.
func (s *story) killed(deployment string) {
	next := s.start(deployment)
	s.Await("the second replica to wait for the lease", func() bool { return strings.Contains(next.output(), "acquire leader lease") })
	s.Must(s.usher.Kill())
	s.usher.stop()
	began := time.Now()
	s.Await("the second replica to lead", next.leads)
	// cmd/usher's TestRenewal has the bound. Here others use the processors.
	took := time.Since(began)
	if s.Logf("followed after %s", took); took < 3*time.Second || took > 8*time.Second {
		s.Errorf("the leader was killed, and followed after %s", took)
	}
	s.usher = next
}

// ready waits until a process of Usher with probes at an address is.
func (s *story) ready(address string) {
	s.Await("Usher to be ready", func() bool {
		request := checktest.Must(http.NewRequestWithContext(s.Context(), http.MethodGet, "http://"+address+"/readyz", nil))(s)
		answer, err := http.DefaultClient.Do(request)
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	})
}

// end stops Usher, and what makes the guard's certificate.
func (s *story) end() {
	s.usher.stop()
	if s.certificate != nil {
		s.certificate.stop()
		s.certificate = nil
	}
}

// listensNot checks that what makes the guard's certificate listens to nothing.
func (s *story) listensNot() {
	sockets := s.sh("readlink /proc/%d/fd/* | grep -o 'socket:.*'", s.certificate.PID())
	// The fourth column is the state, and 0A means that it listens; the tenth is the socket.
	for line := range strings.Lines(s.sh("tail -qn +2 /proc/%[1]d/net/tcp /proc/%[1]d/net/tcp6", s.certificate.PID())) {
		if f := strings.Fields(line); f[3] == "0A" && strings.Contains(sockets, "socket:["+f[9]+"]") {
			s.Errorf("the process %s listens on a port: %s", certificateDeployment, line)
		}
	}
	if sockets == "" {
		s.Errorf("the process %s has no sockets: is that the right one?", certificateDeployment)
	}
}

// guarded reports whether arguments are those of a process that runs the guard.
func guarded(args []string) bool {
	return slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--guard-port=") })
}

// reachGuard has API servers find the guard on this machine, as there are no cluster IPs
// here. It returns the arguments for that, none where the guard does not run.
func (s *story) reachGuard(args []string) []string {
	if !guarded(args) {
		return nil
	}
	ports := checktest.Must(servers.FreePorts(s.Context(), 1))(s)
	s.sh(`kubectl -n usher-system patch service usher-guard --type json -p '[{"op":"replace","path":"/spec","value":{"type":"ExternalName","externalName":"127.0.0.1"}}]'
		kubectl patch validatingwebhookconfiguration usher-guard --type json -p '[{"op":"add","path":"/webhooks/0/clientConfig/service/port","value":%[1]d},{"op":"add","path":"/webhooks/1/clientConfig/service/port","value":%[1]d}]'`, ports[0])
	return []string{fmt.Sprintf("--guard-port=%d", ports[0])}
}

func (u *usher) output() string {
	u.story.Helper()
	return string(checktest.Must(os.ReadFile(u.Log()))(u.story))
}

// forbidden fails if Usher was refused anything: the chart's roles must suffice.
func (u *usher) forbidden() {
	u.story.Helper()
	for line := range strings.Lines(u.output()) {
		if strings.Contains(line, "forbidden") || strings.Contains(line, "panic") {
			u.story.Errorf("Usher said: %s", line)
		}
	}
}

// container is the service account and the arguments of a Deployment's container.
func (s *story) container(deployment string) (account string, args []string) {
	var template struct {
		ServiceAccountName string
		Containers         []struct{ Args []string }
	}
	text := s.sh("kubectl -n usher-system get deployment %s -o jsonpath='{.spec.template.spec}'", deployment)
	s.Must(json.Unmarshal([]byte(text), &template))
	return template.ServiceAccountName, template.Containers[0].Args
}

// kubeconfigOf is a kubeconfig with a token of a service account.
func (s *story) kubeconfigOf(account string) string {
	config := checktest.Must(clientcmd.LoadFromFile(s.Kubeconfig()))(s)
	for user := range config.AuthInfos {
		config.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: s.sh("kubectl -n usher-system create token %s", account)}
	}
	file := filepath.Join(s.TempDir(), account+".kubeconfig")
	s.Must(clientcmd.WriteToFile(*config, file))
	return file
}

// apply applies a manifest of testdata/manifests.
func (s *story) apply(name string) {
	text := checktest.Must(os.ReadFile(filepath.Join("testdata", "manifests", name+".yaml")))(s)
	s.sh("kubectl apply -f - <<'END'\n%s\nEND", s.Expand(string(text)))
}

// available waits until the set has that many Pods in service.
func (s *story) available(count string) {
	s.Await("the CloneSet to have "+count+" Pods in service", func() bool {
		out, err := s.try(`kubectl get cloneset web -o jsonpath='{.status.updatedAvailableReplicas}/{.status.replicas}/{.metadata.generation}={.status.observedGeneration}'`)
		counts, generations, _ := strings.Cut(out, "/"+count+"/")
		wanted, observed, _ := strings.Cut(generations, "=")
		return err == nil && counts == count && wanted == observed
	})
}

// pods lists the set's Pods with their identity, their restarts and what holds them.
func (s *story) pods() string {
	return s.sh(`kubectl get pods -l app=web --sort-by=.metadata.name -o jsonpath='{range .items[*]}{.metadata.name} {.metadata.uid} restarts={.status.containerStatuses[0].restartCount} deleted={.metadata.deletionTimestamp} revision={.metadata.labels.controller-revision-hash}{"\n"}{end}'`)
}

// remains checks that the CRDs and the CloneSet are unchanged without Usher.
func (s *story) remains() {
	if crds := s.sh("kubectl get crd -l usher.dev/protected -o name"); len(strings.Fields(crds)) != 3 {
		s.Errorf("there are the CRDs %q, want three", crds)
	}
	checktest.Same(s, "the CloneSet", "3", strings.TrimSpace(s.sh("kubectl get cloneset web -o jsonpath='{.spec.replicas} {.metadata.finalizers} {.metadata.deletionTimestamp}'")))
}

// within checks that all lines of a text are in another one.
func (s *story) within(text, lines string) {
	for line := range strings.Lines(lines) {
		checktest.Says(s, "it", text, strings.TrimSpace(line))
	}
}
