// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/consul"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/dns"
	"github.com/usher-dev/usher/internal/registration/registry/gcpneg"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/webhook"
	"github.com/usher-dev/usher/internal/registration/registry/xds"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// TestKinds checks that everything that must know each kind of registry knows it.
func TestKinds(t *testing.T) {
	kube := fake.NewClientBuilder().Build()
	connect := Connect(Cluster{Reader: kube, Writer: kube, XDS: xds.NewStore()})
	scenariotest.Table(t, "testdata/kinds.txt", func(t *testing.T, spec usherv1alpha1.RegistrySpec) string {
		r := &usherv1alpha1.Registry{Spec: spec}
		kind, settings := Of(r, "demo")
		if folds := settings.Fold != nil && settings.Fold("Pay") == settings.Fold("pAY"); folds != slices.Contains([]string{"awsCloudMap", "consul", "eureka"}, kind.Name) {
			t.Errorf("it takes Pay and pAY for one service: %t", folds)
		}
		_, elsewhere := Of(r, "other")
		if apart, open := kind.Gated || settings.Own && elsewhere.Own, plan.Open(&spec); apart == open {
			t.Errorf("it keeps the services of each namespace apart: %t; without rules, every namespace may take any: %t", apart, open)
		}
		connects(t, kind.Name, connect, r)
		said := []string{kind.Name}
		if settings.Root != "" {
			said = append(said, "root "+settings.Root)
		}
		if settings.Secret != nil {
			said = append(said, "Secret "+settings.Secret.Name)
		}
		return strings.Join(said, ", ")
	})
}

// connects checks that a Registry has a connector.
func connects(t *testing.T, what string, connect connecting, r *usherv1alpha1.Registry) {
	t.Helper()
	kind, settings := Of(r, "demo")
	var secret map[string][]byte
	if settings.Secret != nil {
		secret = wholeSecret(t, kind.Keys)
	}
	c, err := connect(r, settings.Root, secret)
	if err == nil {
		err = c.Close()
	}
	registrytest.Check(t, what, err, nil)
}

// wholeSecret is what a Secret with all of the keys holds.
func wholeSecret(t *testing.T, keys []string) map[string][]byte {
	t.Helper()
	a := registrytest.NewAuthority(t)
	certificate, private := a.Pair()
	whole := map[string][]byte{
		credentials.KeyCA: a.PEM, credentials.KeyCertificate: certificate, credentials.KeyPrivateKey: private, dns.KeyAlgorithm: []byte("hmac-sha256"),
		gcpneg.Key: []byte(`{"type": "service_account", "token_uri": "https://oauth2.googleapis.com/token"}`),
	}
	for _, key := range keys {
		if whole[key] == nil {
			whole[key] = []byte("c2VjcmV0")
		}
	}
	return only(whole, keys)
}

// TestSecretsLackNothing is an attack, or a slip: whoever may write the Secret, or who misspells a key,
// has Usher talk to the registry without the credentials that the Registry names. DNS updates would be
// unsigned, and others anonymous. It is an error that says what belongs there.
func TestSecretsLackNothing(t *testing.T) {
	connect := Connect(Cluster{})
	scenariotest.Table(t, "testdata/kinds.txt", func(t *testing.T, spec usherv1alpha1.RegistrySpec) string {
		r := &usherv1alpha1.Registry{Spec: spec}
		kind, settings := Of(r, "demo")
		said := []string{kind.Name}
		if settings.Root != "" {
			said = append(said, "root "+settings.Root)
		}
		if settings.Secret == nil {
			return strings.Join(said, ", ")
		}
		whole := wholeSecret(t, kind.Keys)
		for what, secret := range map[string]map[string][]byte{
			"an empty Secret": nil, "another's keys": {"pasword": []byte("a"), "tsig": []byte("b")}, "an empty CA": {credentials.KeyCA: nil},
		} {
			_, err := connect(r, settings.Root, secret)
			registrytest.Check(t, what, err, registry.ErrPermanent, append(slices.Clone(kind.Keys), settings.Secret.Namespace+"/"+settings.Secret.Name)...)
		}
		for _, key := range kind.Keys {
			tls := slices.Contains(credentials.TLSKeys(), key)
			blank := maps.Clone(whole)
			blank[key] = []byte(" \n")
			if _, err := connect(r, settings.Root, blank); !tls {
				registrytest.Check(t, key+" is blank", err, registry.ErrPermanent, key)
			}
		}
		for key := range whole {
			_, err := connect(r, settings.Root, map[string][]byte{key: whole[key]})
			checkAlone(t, kind.Name, key, err)
		}
		return strings.Join(append(said, "Secret "+settings.Secret.Name), ", ")
	})
}

// checkAlone checks the error of a connector that got one key of its Secret.
func checkAlone(t *testing.T, kind, key string, err error) {
	t.Helper()
	switch {
	case key == credentials.KeyCA || key == gcpneg.Key:
		registrytest.Check(t, key+" alone", err, nil)
	case key != webhook.KeyHMAC && key != consul.KeyToken && kind != "eureka":
		registrytest.Check(t, key+" alone", err, registry.ErrPermanent)
	}
}

type connecting = func(r *usherv1alpha1.Registry, root string, secret map[string][]byte) (registry.Connector, error)

// TestNoKind checks that the error lists the available kinds.
func TestNoKind(t *testing.T) {
	none := &usherv1alpha1.Registry{}
	if kind, settings := Of(none, "demo"); kind.Name+settings.Root != "" || settings.Secret != nil || settings.Connect != nil {
		t.Errorf("no kind: %+v, %+v", kind, settings)
	}
	_, err := Connect(Cluster{})(none, "", nil)
	if !errors.Is(err, registry.ErrPermanent) || !strings.Contains(err.Error(), "set one of spec.awsCloudMap, spec.awsTargetGroup, spec.consul, spec.dns, ") ||
		!strings.Contains(err.Error(), " and spec.zookeeper") {
		t.Errorf("no kind: %v", err)
	}
}

// TestXDSUnserved checks that the error names the missing flag.
func TestXDSUnserved(t *testing.T) {
	kube := fake.NewClientBuilder().Build()
	served := &usherv1alpha1.Registry{Spec: usherv1alpha1.RegistrySpec{XDS: &usherv1alpha1.XDSRegistry{}}}
	_, err := Connect(Cluster{Reader: kube, Writer: kube})(served, "demo", nil)
	if !errors.Is(err, registry.ErrPermanent) || !strings.Contains(err.Error(), "--xds-bind-address") {
		t.Errorf("xds that nobody serves: %v", err)
	}
}

const root = "../../../../"

func read(t *testing.T, path string) string {
	t.Helper()
	data := checktest.Must(os.ReadFile(root + path))(t)
	return string(data)
}

// TestTable checks that the table, the API's fields and the CRD agree.
func TestTable(t *testing.T) {
	names := list.Map(table(Cluster{}, &usherv1alpha1.RegistrySpec{}, ""), func(row Kind) string { return row.Name })
	if fields := fieldsOfAPI(t); !slices.Equal(names, fields) {
		t.Errorf("the table has the kinds %q, RegistrySpec the fields %q", names, fields)
	}
	whole := schemaOf(t)
	stays, spec := whole.XValidations[0].Rule, whole.Properties["spec"]
	for _, row := range table(Cluster{}, &usherv1alpha1.RegistrySpec{}, "") {
		if rule := spec.XValidations[0]; !strings.Contains(rule.Rule, "has(self."+row.Name+")") || !strings.Contains(rule.Message, row.Name) {
			t.Errorf("the rule of RegistrySpec leaves %s out: %s: %s", row.Name, rule.Message, rule.Rule)
		}
		if !strings.Contains(stays, "has(self.spec."+row.Name+")") || !strings.Contains(stays, "has(oldSelf.spec."+row.Name+")") {
			t.Errorf("the rule of Registry that keeps one in use at its place leaves %s out: %s", row.Name, stays)
		}
		checktest.Says(t, "spec."+row.Name+".credentialsSecret", spec.Properties[row.Name].Properties["credentialsSecret"].Description, row.Keys...)
	}
}

// fieldsOfAPI returns the kinds in the API, sorted, and checks that its own row reads
// each.
func fieldsOfAPI(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[usherv1alpha1.RegistrySpec]()) {
		if !strings.HasSuffix(field.Type.String(), "Registry") {
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		names = append(names, name)
		r := &usherv1alpha1.Registry{}
		reflect.ValueOf(&r.Spec).Elem().FieldByIndex(field.Index).Set(reflect.New(field.Type.Elem()))
		kind, _ := Of(r, "")
		checktest.Same(t, "the row that reads spec."+name, name, kind.Name)
		checktest.Same(t, "whether somebody else writes to "+name, kind.Follows, plan.OnlyFollowed(&r.Spec))
	}
	slices.Sort(names)
	return names
}

// schemaOf returns the schema of Registries that the API server uses.
func schemaOf(t *testing.T) *apiextensionsv1.JSONSchemaProps {
	t.Helper()
	var crd apiextensionsv1.CustomResourceDefinition
	checktest.NoError(t, yaml.Unmarshal([]byte(read(t, "config/crd/usher.dev_registries.yaml")), &crd))
	checktest.Same(t, "how many versions there are", 1, len(crd.Spec.Versions))
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// TestDocuments checks that docs/registries.md has a row for each kind, docs/registry a page
// with an example, and that README.md names it, and that each example works.
func TestDocuments(t *testing.T) {
	text := read(t, "docs/registries.md")
	_, list, _ := strings.Cut(read(t, "README.md"), "Registries so far:")
	kube := fake.NewClientBuilder().Build()
	connect := Connect(Cluster{Reader: kube, Writer: kube, XDS: xds.NewStore()})
	for _, row := range table(Cluster{}, &usherv1alpha1.RegistrySpec{}, "") {
		checktest.Says(t, "README.md", strings.ToLower(list), strings.ToLower(row.Name))
		cells := cellsOf(text, row.Name)
		if len(cells) != 6 || cells[1] != secretCell(row.Keys) || (cells[4] == "no") == row.HoldsBack {
			t.Errorf("the table of docs/registries.md has %q; its Secret is %q, and it holds back: %t", cells, secretCell(row.Keys), row.HoldsBack)
		}
		page := "docs/registry/" + strings.ToLower(row.Name) + ".md"
		r := exampleIn(t, read(t, page), row.Name)
		if r == nil {
			t.Errorf("%s has no example", page)
			continue
		}
		connects(t, "the example of "+row.Name, connect, r)
	}
}

// exampleIn returns the first Registry of a kind in a document.
func exampleIn(t *testing.T, text, name string) *usherv1alpha1.Registry {
	t.Helper()
	for _, part := range strings.Split(text, "```yaml\n")[1:] {
		block, _, _ := strings.Cut(part, "```")
		for document := range strings.SplitSeq(block, "---\n") {
			if !strings.Contains(document, "\nkind: Registry\n") {
				continue
			}
			r := &usherv1alpha1.Registry{}
			checktest.NoError(t, yaml.UnmarshalStrict([]byte(document), r))
			if kind, _ := Of(r, ""); kind.Name == name {
				return r
			}
		}
	}
	return nil
}

// cellsOf returns the cells of a kind's row.
func cellsOf(text, name string) []string {
	_, row, _ := strings.Cut(text, "\n| [`"+name+"`](registry/"+strings.ToLower(name)+".md) |")
	row, _, _ = strings.Cut(row, "|\n")
	return append([]string{name}, list.Map(strings.Split(row, "|"), strings.TrimSpace)...)
}

// secretCell names the keys of a Secret, with the TLS keys grouped as one.
func secretCell(keys []string) string {
	tls := credentials.TLSKeys()
	alone := list.Only(keys, func(key string) bool {
		return !slices.Contains(tls, key) || !slices.Contains(keys, credentials.KeyCertificate)
	})
	words := list.Map(alone, func(key string) string { return "`" + key + "`" })
	if len(words) < len(keys) {
		words = append(words, "TLS")
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

// TestSuite checks that every kind that Usher writes to has a test, in a folder <kind> or a file
// <kind>_test.go, that runs the connectors' common suite, and lets it hold entries back exactly
// if the table says so.
func TestSuite(t *testing.T) {
	suites := readSuites(t)
	for _, row := range table(Cluster{}, &usherv1alpha1.RegistrySpec{}, "") {
		suite := suites[strings.ToLower(row.Name)]
		follows, holds := strings.Contains(suite, "registrytest.RunFollower("), strings.Contains(suite, "HoldsBack: ")
		want := row.HoldsBack && !row.Follows // one that only lists holds nothing back
		if row.Gated || suite != "" && row.Follows == follows && want == holds {
			continue
		}
		t.Errorf("a test of %s runs registrytest: %t; as of one that only lists: %t, want %t; it holds entries back: %t, want %t",
			row.Name, suite != "", follows, row.Follows, holds, want)
	}
}

// readSuites reads the tests that run the common suite, by the names of their files and folders.
func readSuites(t *testing.T) map[string]string {
	t.Helper()
	suites := map[string]string{}
	for _, folder := range []string{"test/registries", "test/integration/registries", "internal/registration/registry"} {
		err := filepath.WalkDir(root+folder, func(path string, _ fs.DirEntry, err error) error {
			if name, isTest := strings.CutSuffix(filepath.Base(path), "_test.go"); isTest && err == nil {
				text := read(t, strings.TrimPrefix(path, root))
				if strings.Contains(text, "registrytest.Run(") || strings.Contains(text, "registrytest.RunFollower(") {
					suites[name] += text
					suites[filepath.Base(filepath.Dir(path))] += text
				}
			}
			return err
		})
		checktest.NoError(t, err)
	}
	return suites
}

// TestOnlyItsKeys checks that a connector receives only the Secret keys that the table
// names.
func TestOnlyItsKeys(t *testing.T) {
	got := only(map[string][]byte{"token": []byte("a"), "password": []byte("b")}, []string{"token", "ca.crt"})
	checktest.Same(t, "what the connector gets", map[string][]byte{"token": []byte("a")}, got)
}

// TestMetadataThatCallersObey is an attack: whoever may write a Registration publishes what
// callers execute or obey. It is refused before the server, which is down here, hears of it.
func TestMetadataThatCallersObey(t *testing.T) {
	scenariotest.Table(t, "testdata/obeyed.txt", func(t *testing.T, test struct {
		Spec       usherv1alpha1.RegistrySpec
		Key, Value string
	}) string {
		result, last := "taken", test.Key+"="+test.Value[strings.LastIndex(test.Value, ",")+1:]
		for _, allowed := range []string{"", test.Key, last} {
			r := &usherv1alpha1.Registry{Spec: test.Spec}
			r.Spec.AllowedMetadata = []string{allowed}
			_, settings := Of(r, "demo")
			connector := checktest.Must(Connect(Cluster{})(r, settings.Root, nil))(t)
			e := registrytest.Entry("a")
			e.Metadata = map[string]string{"zone": "a", test.Key: test.Value}
			what := fmt.Sprintf("%q is allowed", allowed)
			if err := registrytest.TryPut(t, connector, e); allowed == "" && !errors.Is(err, registry.ErrTransient) {
				registrytest.CheckRefused(t, what, err, "a", registry.ErrPermanent, last, "spec.allowedMetadata")
				result = "refused"
			} else {
				registrytest.Check(t, what, err, registry.ErrTransient)
			}
			leaves := connector.Apply(registrytest.Bounded(t), "web", []registry.Change{{Op: registry.Remove, Entry: e}})
			registrytest.Check(t, what+": it leaves", leaves, registry.ErrTransient)
			checktest.NoError(t, connector.Close())
		}
		return result
	})
}
