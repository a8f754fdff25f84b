// SPDX-License-Identifier: Apache-2.0

package zookeeper_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/zookeeper"
	"github.com/usher-dev/usher/test/fetch"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/servers/run"
)

func TestConformance(t *testing.T) {
	s := start(t)
	admin := s.raw(t)
	seeds := map[usherv1alpha1.ZooKeeperLayout]func(t *testing.T, service, id string){
		usherv1alpha1.LayoutCurator: func(t *testing.T, service, id string) {
			create(t, admin, "/services/"+service+"/"+id, `{"name":"web","id":"theirs","address":"192.0.2.1","port":1}`, open())
		},
		usherv1alpha1.LayoutDubbo: func(t *testing.T, service, id string) {
			create(t, admin, "/dubbo/"+service+"/providers/"+id, "192.0.2.1", open())
		},
	}
	for layout, seed := range seeds {
		t.Run(string(layout), func(t *testing.T) {
			registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
				empty(t, admin, "/"+paths[layout])
				return registrytest.Fixture{
					Atomic:    true,
					Connector: s.connect(t, layout, nil),
					Seed:      func(service, id string) { seed(t, service, id) },
					Break:     s.Kill, Mend: s.Restart, Hang: s.Hang, Resume: s.Resume,
				}
			})
		})
	}
}

// TestEntriesOutliveTheirWriter closes the session that wrote an entry.
func TestEntriesOutliveTheirWriter(t *testing.T) {
	s := start(t)
	writer := s.curator(t)
	registrytest.Put(t, writer, registrytest.Entry("a"))
	checktest.NoError(t, writer.Close())
	_, stat, err := s.raw(t).Get("/services/web/a")
	if err != nil || stat.EphemeralOwner != 0 {
		t.Errorf("the node is %+v, %v; want a persistent one", stat, err)
	}
	registrytest.Check(t, "a closed connector", writer.Ping(registrytest.Bounded(t)), registry.ErrTransient)
}

// TestDisabledByCurator reports an instance that Curator's callers skip.
func TestDisabledByCurator(t *testing.T) {
	s := start(t)
	r := s.curator(t)
	want := registrytest.Entry("a")
	registrytest.Put(t, r, want)
	admin := s.raw(t)
	data, stat, err := admin.Get("/services/web/a")
	checktest.NoError(t, err)
	off := strings.Replace(string(data), `"enabled":true`, `"enabled":false`, 1)
	checktest.Must(admin.Set("/services/web/a", []byte(off), stat.Version))(t)
	checktest.Same(t, "the weight of a disabled instance", 0, registrytest.Only(t, r).Weight)
	registrytest.Heals(t, "a disabled instance", r, want)
}

// TestDubboNames reads the names as Dubbo does, and keeps one of them when the weight
// changes.
func TestDubboNames(t *testing.T) {
	s := start(t)
	r := s.connect(t, usherv1alpha1.LayoutDubbo, nil)
	e := registrytest.Entry("a")
	e.Metadata = map[string]string{"version": "1.0.0", "protocol": "tri"}
	provider := "tri://10.0.0.1:8080/web?interface=web&protocol=tri&side=provider&usher=a&version=1.0.0&weight=%d"
	for _, weight := range []int32{10, 20} {
		e.Weight = weight
		registrytest.Put(t, r, e)
		escaped, _, err := s.raw(t).Children("/dubbo/web/providers")
		checktest.NoError(t, err)
		checktest.Same(t, "providers", []string{url.QueryEscape(fmt.Sprintf(provider, weight))}, escaped)
	}
	// A provider that registered itself under the same URL is not ours to take over.
	self := registrytest.Entry("b")
	self.Address = "10.0.0.2"
	create(t, s.raw(t), "/dubbo/web/providers/"+url.QueryEscape(
		"dubbo://10.0.0.2:8080/web?interface=web&side=provider&usher=b&weight=10&zone=a"), "10.0.0.2", open())
	registrytest.CheckRefused(t, "another's node", registrytest.TryPut(t, r, self), "b", registry.ErrForeign)
}

// TestDigest uses a root that only usher may write.
func TestDigest(t *testing.T) {
	s := start(t)
	acl := append(zk.DigestACL(zk.PermAll, "usher", "right"), zk.WorldACL(zk.PermRead)...)
	create(t, s.raw(t), "/services", "", acl)
	for name, test := range map[string]struct {
		login []string
		want  error
	}{
		"right": {[]string{"usher", "right"}, nil},
		"wrong": {[]string{"usher", registrytest.Secret}, registry.ErrPermanent},
		"none":  {nil, registry.ErrPermanent},
	} {
		r := s.curator(t, test.login...)
		registrytest.Check(t, name+": apply", registrytest.TryPut(t, r, registrytest.Entry(name)), test.want)
		registrytest.List(t, r) // Everybody may read.
	}
	admin := s.raw(t)
	checktest.NoError(t, admin.AddAuth("digest", []byte("usher:right")))
	for _, path := range []string{"/services/web", "/services/web/right"} {
		if have, _, err := admin.GetACL(path); err != nil || !slices.Equal(have, acl) {
			t.Errorf("the ACL of %s is %v, %v; want that of the root, %v", path, have, err, acl)
		}
	}
}

// TestTLS uses a server with a secure port that asks for a certificate.
func TestTLS(t *testing.T) {
	a := registrytest.NewAuthority(t)
	ca, _, _ := a.Files()
	certificate, key := a.Pair()
	block, _ := pem.Decode(key)
	block.Bytes = checktest.Must(x509.MarshalPKCS8PrivateKey(checktest.Must(x509.ParseECPrivateKey(block.Bytes))(t)))(t)
	block.Type = "PRIVATE KEY" // ZooKeeper reads no other
	both := filepath.Join(t.TempDir(), "server.pem")
	checktest.NoError(t, os.WriteFile(both, append(pem.EncodeToMemory(block), certificate...), 0o600))
	secure := fmt.Sprintf("127.0.0.1:%d", servers.FreePorts(t, 1)[0])
	_, port, _ := strings.Cut(secure, ":")
	start(t, "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory", "secureClientPort="+port,
		"secureClientPortAddress=127.0.0.1", "ssl.clientAuth=need", "ssl.hostnameVerification=false",
		"ssl.keyStore.type=PEM", "ssl.keyStore.location="+both, "ssl.trustStore.type=PEM", "ssl.trustStore.location="+ca)
	connect := func(secret map[string][]byte) (*zookeeper.Registry, error) {
		return zookeeper.New([]string{secure}, usherv1alpha1.LayoutCurator, "services", true, secret)
	}
	registrytest.CheckTLS(t, a, registry.ErrTransient, connect)
	certificate, key = a.Pair()
	r := registrytest.Connect(connect(map[string][]byte{
		credentials.KeyCA: a.PEM, credentials.KeyCertificate: certificate, credentials.KeyPrivateKey: key,
	}))(t)
	e := registrytest.Entry("a")
	registrytest.Put(t, r, e)
	registrytest.CheckNone(t, "at the end", registrytest.Remove(t, r, e))
	plain := registrytest.Connect(zookeeper.New([]string{secure}, usherv1alpha1.LayoutCurator, "services", false, nil))(t)
	registrytest.Check(t, "without TLS", plain.Ping(registrytest.Bounded(t)), registry.ErrTransient)
}

// TestMaskedACL writes where we may not read who owns the folder.
func TestMaskedACL(t *testing.T) {
	s := start(t)
	const permissions = zk.PermRead | zk.PermWrite | zk.PermCreate | zk.PermDelete
	create(t, s.raw(t), "/services", "", slices.Concat(zk.DigestACL(zk.PermAll, "boss", "secret"),
		zk.DigestACL(permissions, "usher", "right"), zk.WorldACL(zk.PermRead)))
	r, e := s.curator(t, "usher", "right"), registrytest.Entry("a")
	registrytest.Put(t, r, e)
	e.Weight = 20
	registrytest.Put(t, r, e)
	registrytest.CheckNone(t, "at the end", registrytest.Remove(t, r, e))
}

// TestUnreadable never treats an unreadable list as an empty one.
func TestUnreadable(t *testing.T) {
	s := start(t)
	create(t, s.raw(t), "/services", "", zk.DigestACL(zk.PermAll, "other", "secret"))
	r := s.curator(t)
	registrytest.Check(t, "ping", r.Ping(registrytest.Bounded(t)), registry.ErrPermanent)
	registrytest.List(t, r) // There is no such service.
}

// TestFolderThatVanishes writes where Curator's container was deleted with its last
// instance, before the write or between list and write.
func TestFolderThatVanishes(t *testing.T) {
	s := start(t)
	r := s.curator(t)
	admin := s.raw(t)
	for _, id := range []string{"a", "b"} {
		checktest.NoError(t, registrytest.TryPut(t, r, registrytest.Entry(id)))
		checktest.Same(t, "listed", id, registrytest.Only(t, r).ID)
		empty(t, admin, "/services")
	}
	registrytest.CheckNone(t, "without a folder", registrytest.List(t, r))
}

// dubboDelay is how long Dubbo's client may delay changes once several changes have
// arrived.
const dubboDelay = 5 * time.Second

// caller runs the directory's Consumer.java, and returns what it knows: the address of each instance, and more after a
// bar.
func caller(t *testing.T, folder string, args ...string) func() []string {
	t.Helper()
	return servers.Call(t, slices.Concat(servers.Java(t, folder, folder), args)).Known
}

// addresses drops what follows the bar.
func addresses(instances func() []string) func() []string {
	return func() []string {
		return list.Map(instances(), func(i string) string {
			address, _, _ := strings.Cut(i, "|")
			return address
		})
	}
}

// TestCuratorTraffic rolls instances under a caller that uses Curator's ServiceCache.
func TestCuratorTraffic(t *testing.T) {
	s := start(t)
	registrytest.Rollout{Connector: s.curator(t), Propagation: time.Second}.Run(t, func(t *testing.T) func() []string {
		return addresses(caller(t, "curator", s.address, "/services", "web", "java.lang.Void"))
	})
}

// TestDubboTraffic rolls instances under a caller that uses Dubbo's own ZooKeeper
// client. Requests are HTTP: the test is about which instances get them.
func TestDubboTraffic(t *testing.T) {
	s := start(t)
	rollout := registrytest.Rollout{
		Connector: s.connect(t, usherv1alpha1.LayoutDubbo, nil), Service: "org.example.Web",
		Propagation: dubboDelay + time.Second, Metadata: map[string]string{"version": "1.0.0"},
	}
	rollout.Run(t, func(t *testing.T) func() []string {
		return addresses(caller(t, "dubbo", s.address, "org.example.Web", "1.0.0"))
	})
}

// TestPayload reads metadata as Curator's payload.
func TestPayload(t *testing.T) {
	s := start(t)
	r := s.curator(t)
	for class, want := range map[string]struct {
		metadata map[string]string
		payload  string
	}{
		"java.lang.Void": {nil, "null"},
		"java.util.Map":  {map[string]string{"zone": "a"}, "{zone=a}"},
		// The key @class chooses the class, as in Curator's own payloads.
		"java.util.TreeMap": {map[string]string{"@class": "java.util.TreeMap", "zone": "a"}, "{zone=a}"},
	} {
		e := registrytest.Entry("a")
		e.Metadata = want.metadata
		registrytest.Put(t, r, e)
		knows(t, caller(t, "curator", s.address, "/services", "web", class), "10.0.0.1:8080|"+want.payload)
	}
}

// TestDubboWeight changes the weight of a provider: a caller always sees exactly one
// version of it.
func TestDubboWeight(t *testing.T) {
	s := start(t)
	r := s.connect(t, usherv1alpha1.LayoutDubbo, nil)
	e := registrytest.Entry("a")
	e.Metadata = map[string]string{"version": "1.0.0"}
	registrytest.Put(t, r, e)
	instances := caller(t, "dubbo", s.address, "web", "1.0.0")
	knows(t, instances, "10.0.0.1:8080|10")
	e.Weight = 20
	registrytest.Put(t, r, e)
	knows(t, instances, "10.0.0.1:8080|20")
}

// knows waits until the caller knows exactly that instance.
func knows(t *testing.T, instances func() []string, want string) {
	t.Helper()
	registrytest.Eventually(t, "a caller's instances", func() string {
		have := instances()
		return registrytest.Unless(slices.Equal(have, []string{want}), fmt.Sprintf("they are %v, want %s", have, want))
	})
}

// packages are the Debian packages with the server's classes.
var packages = []string{
	"libzookeeper-java", "libnetty-java", "libslf4j-java", "libdropwizard-metrics-java", "libsnappy-java",
	"libjackson2-core-java", "libjackson2-databind-java", "libjackson2-annotations-java", "libcommons-cli-java",
}

// jars are the ones in them that the server needs. Others would log to another place.
var jars = []string{
	"zookeeper", "zookeeper-jute", "netty-buffer", "netty-codec", "netty-common", "netty-handler", "netty-resolver", "netty-transport",
	"netty-transport-native-epoll", "netty-transport-native-unix-common", "slf4j-api", "slf4j-simple", "metrics-core", "snappy-java",
	"jackson-core", "jackson-databind", "jackson-annotations", "commons-cli",
}

// server is a single-member ZooKeeper.
type server struct {
	*run.Process
	address string
}

// start starts a server, with more lines in its configuration.
func start(t *testing.T, more ...string) *server {
	t.Helper()
	root := servers.Fetch(t, func(ctx context.Context) (string, error) { return fetch.Debian(ctx, "zookeeper", packages...) })
	path := list.Map(jars, func(jar string) string { return filepath.Join(root, "usr/share/java", jar+".jar") })
	port := servers.FreePorts(t, 1)[0]
	s := &server{address: fmt.Sprintf("127.0.0.1:%d", port)}
	config := filepath.Join(t.TempDir(), "zoo.cfg")
	text := append([]string{
		"tickTime=2000", "dataDir=" + t.TempDir(), fmt.Sprintf("clientPort=%d", port), "clientPortAddress=127.0.0.1",
		"admin.enableServer=false", "4lw.commands.whitelist=srvr", "maxClientCnxns=0", "",
	}, more...)
	checktest.NoError(t, os.WriteFile(config, []byte(strings.Join(text, "\n")), 0o600))
	s.Process = servers.Start(t, run.Spec{
		Name: "zookeeper", Path: "java", Ready: s.ready,
		Args: []string{"-Xmx128m", "-cp", strings.Join(path, ":"),
			"org.apache.zookeeper.server.quorum.QuorumPeerMain", config},
	})
	return s
}

// ready returns nil once the server serves requests.
func (s *server) ready(ctx context.Context) error {
	answer, err := run.Ask(ctx, "tcp", s.address, "srvr")
	if err == nil && !strings.Contains(answer, "Mode:") {
		err = fmt.Errorf("it answered %q", answer)
	}
	return err
}

// raw is a client that bypasses the connector.
func (s *server) raw(t *testing.T) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect([]string{s.address}, 10*time.Second, zk.WithLogInfo(false), zk.WithLogger(log.New(io.Discard, "", 0)))
	checktest.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// empty removes the path and everything below it.
func empty(t *testing.T, conn *zk.Conn, path string) {
	t.Helper()
	children, _, err := conn.Children(path)
	if err == zk.ErrNoNode { //nolint:errorlint // The client returns it as it is.
		return
	}
	checktest.NoError(t, err)
	for _, child := range children {
		empty(t, conn, path+"/"+child)
	}
	checktest.NoError(t, conn.Delete(path, -1))
}

// create writes a node and its parents, as other clients do.
func create(t *testing.T, conn *zk.Conn, path string, data string, acl []zk.ACL) {
	t.Helper()
	for i, c := range path[1:] {
		if c == '/' {
			if _, err := conn.Create(path[:i+1], nil, 0, acl); err != nil && err != zk.ErrNodeExists { //nolint:errorlint // As above.
				t.Fatal(err)
			}
		}
	}
	checktest.Must(conn.Create(path, []byte(data), 0, acl))(t)
}

func open() []zk.ACL { return zk.WorldACL(zk.PermAll) }

// curator returns a connector with Curator's layout and these credentials, if any.
func (s *server) curator(t *testing.T, login ...string) *zookeeper.Registry {
	t.Helper()
	secret := map[string][]byte{}
	if len(login) > 0 {
		secret[credentials.KeyUsername], secret[credentials.KeyPassword] = []byte(login[0]), []byte(login[1])
	}
	return s.connect(t, usherv1alpha1.LayoutCurator, secret)
}

// paths are where callers of the layouts look.
var paths = map[usherv1alpha1.ZooKeeperLayout]string{usherv1alpha1.LayoutCurator: "services", usherv1alpha1.LayoutDubbo: "dubbo"}

func (s *server) connect(t *testing.T, layout usherv1alpha1.ZooKeeperLayout, secret map[string][]byte) *zookeeper.Registry {
	t.Helper()
	return registrytest.Connect(zookeeper.New([]string{s.address}, layout, paths[layout], false, secret))(t)
}
