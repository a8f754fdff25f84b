// SPDX-License-Identifier: Apache-2.0

package zookeeper_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/zookeeper"
	"github.com/usher-dev/usher/test/fetch"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/servers/run"
)

// packages are the Debian packages with the server's classes.
var packages = []string{
	"libzookeeper-java", "libnetty-java", "libslf4j-java", "libdropwizard-metrics-java", "libsnappy-java",
	"libjackson2-core-java", "libjackson2-databind-java", "libjackson2-annotations-java", "libcommons-cli-java",
}

// jars are the ones in them that the server needs. Others would log to another place.
var jars = []string{
	"zookeeper", "zookeeper-jute", "netty-all", "slf4j-api", "slf4j-simple", "metrics-core", "snappy-java",
	"jackson-core", "jackson-databind", "jackson-annotations", "commons-cli",
}

// server is a single-member ZooKeeper.
type server struct {
	*run.Process
	address string
}

func start(t *testing.T) *server {
	t.Helper()
	root := servers.Fetch(t, func(ctx context.Context) (string, error) { return fetch.Debian(ctx, "zookeeper", packages...) })
	var path []string
	for _, jar := range jars {
		path = append(path, filepath.Join(root, "usr/share/java", jar+".jar"))
	}
	port := servers.FreePorts(t, 1)[0]
	s := &server{address: fmt.Sprintf("127.0.0.1:%d", port)}
	config := filepath.Join(t.TempDir(), "zoo.cfg")
	text := strings.Join([]string{
		"tickTime=2000", "dataDir=" + t.TempDir(), fmt.Sprintf("clientPort=%d", port), "clientPortAddress=127.0.0.1",
		"admin.enableServer=false", "4lw.commands.whitelist=srvr", "maxClientCnxns=0", "",
	}, "\n")
	registrytest.NoError(t, os.WriteFile(config, []byte(text), 0o600))
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
	registrytest.NoError(t, err)
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
	registrytest.NoError(t, err)
	for _, child := range children {
		empty(t, conn, path+"/"+child)
	}
	registrytest.NoError(t, conn.Delete(path, -1))
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
	if _, err := conn.Create(path, []byte(data), 0, acl); err != nil {
		t.Fatal(err)
	}
}

func open() []zk.ACL { return zk.WorldACL(zk.PermAll) }

// curator returns a connector with Curator's layout and these credentials, if any.
func (s *server) curator(t *testing.T, login ...string) *zookeeper.Registry {
	t.Helper()
	secret := map[string][]byte{}
	if len(login) > 0 {
		secret[zookeeper.KeyUsername], secret[zookeeper.KeyPassword] = []byte(login[0]), []byte(login[1])
	}
	return s.connect(t, zookeeper.Options{Layout: zookeeper.Curator, Secret: secret})
}

func (s *server) connect(t *testing.T, options zookeeper.Options) *zookeeper.Registry {
	t.Helper()
	options.Servers = []string{s.address}
	return registrytest.Connect(t, zookeeper.New, options)
}
