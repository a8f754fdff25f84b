// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// memory is a server that stores the values of updates apart from its instances, as Nacos does: a registration does not
// change these values, and they outlive the instance.
type memory struct {
	// version is the only one of its APIs.
	version   *api
	mu        sync.Mutex
	instances map[string]instance
	updates   map[string]instance
}

func (m *memory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = r.ParseForm()
	port, _ := strconv.ParseInt(r.Form.Get("port"), 10, 32)
	weight, _ := strconv.ParseFloat(r.Form.Get("weight"), 64)
	i := instance{IP: r.Form.Get("ip"), Port: int32(port), Weight: weight, Healthy: true, Enabled: r.Form.Get("enabled") != "false",
		Ephemeral: r.Form.Get("ephemeral") != "false"}
	_ = json.Unmarshal([]byte(r.Form.Get("metadata")), &i.Metadata)
	var data any = "ok"
	switch path := r.URL.Path; {
	case path == m.version.login:
		_, _ = w.Write([]byte(`{"accessToken":"t0ken","tokenTtl":100}`))
		return
	case path == m.version.list:
		data = m.list()
	case path == m.version.instance && r.Method == http.MethodPost:
		m.instances[i.at()] = i
	case path == m.version.instance && r.Method == http.MethodPut:
		m.updates[i.at()] = i
	case path == m.version.instance && r.Method == http.MethodDelete:
		delete(m.instances, i.at())
	case path != m.version.probe:
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write(m.answer(data))
}

// answer is how that API answers.
func (m *memory) answer(data any) []byte {
	list, isList := data.([]instance)
	switch {
	case m.version == &admin3:
		return encode.JSON(map[string]any{"code": 0, "data": data})
	case isList:
		return encode.JSON(map[string]any{"list": list, "count": len(list)})
	}
	return []byte(`{"healthCheckEnabled":true,"name":"nacos"}`) // No writer reads it.
}

func (m *memory) list() []instance {
	all := []instance{}
	for _, at := range slices.Sorted(maps.Keys(m.instances)) {
		i := m.instances[at]
		if update, set := m.updates[at]; set {
			i.Enabled, i.Weight, i.Metadata = update.Enabled, update.Weight, maps.Clone(i.Metadata)
			if i.Metadata == nil {
				i.Metadata = map[string]string{}
			}
			maps.Copy(i.Metadata, update.Metadata)
		}
		all = append(all, i)
	}
	return all
}

func (m *memory) send(t *testing.T, method, address string, port int32) {
	form := url.Values{"ip": {address}, "port": {strconv.Itoa(int(port))}, "weight": {"3"}, "metadata": {`{"version":"2"}`}}
	m.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), method, m.version.instance+"?"+form.Encode(), nil))
}

func (m *memory) register(t *testing.T, address string, port int32) {
	m.send(t, http.MethodPost, address, port)
}

func (m *memory) callers(*testing.T) (addresses []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.list() {
		if i.Enabled {
			addresses = append(addresses, i.at())
		}
	}
	return addresses
}

// TestSelfRegistered: what applications register is overridden, on a server that behaves as Nacos does.
func TestSelfRegistered(t *testing.T) {
	for name, version := range versions {
		t.Run(name, func(t *testing.T) {
			registrytest.RunSelfRegistered(t, func(t *testing.T) registrytest.SelfRegistered {
				m := &memory{version: version, instances: map[string]instance{}, updates: map[string]instance{}}
				return registrytest.SelfRegistered{
					Connector: connect(t, m.ServeHTTP), Register: m.register, Beat: m.register, Callers: m.callers,
					Leave: func(t *testing.T, address string, port int32) { m.send(t, http.MethodDelete, address, port) },
				}
			})
		})
	}
}

// TestOverridesKeepTheRest: an override changes neither the weight nor the metadata of an application, and one that
// somebody had disabled stays so.
func TestOverridesKeepTheRest(t *testing.T) {
	for _, enabled := range []bool{true, false} {
		there := instance{IP: "10.0.0.1", Port: 80, Weight: 3, Healthy: true, Enabled: enabled, Ephemeral: true, Metadata: map[string]string{"version": "2"}}
		out := there.overridden(registry.Change{Op: registry.TakeOut, Entry: registrytest.Entry("a")})
		listed := out
		listed.Metadata = map[string]string{"version": "2", metaOut: out.Metadata[metaOut]}
		if e := listed.entry(); !e.Override || e.Weight != 0 || e.Hidden == "" || out.Enabled || !out.Ephemeral || out.Weight != 3 {
			t.Errorf("it is %+v, listed as %+v", out, e)
		}
		checktest.Same(t, "the keys beside it", fmt.Sprint([]string{metaOut}), fmt.Sprint(slices.Collect(maps.Keys(out.Metadata))))
		back := listed.overridden(registry.Change{Op: registry.BringBack})
		if back.Enabled != enabled || len(back.Metadata) != 0 || back.Weight != 3 {
			t.Errorf("it comes back as %+v", back)
		}
	}
}
