// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/forecast"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/view"
)

var update = flag.Bool("update", false, "write the golden files")

// TestGolden prints the objects in testdata/*.yaml as status and why do, at noon.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			o := objects(t, file)
			w := view.Of(o)
			var out bytes.Buffer
			p := &page{out: &out}
			p.status(&w, o.Now)
			p.line(plain, "\n# why")
			p.why(&w, target{kindCloneSet, w.Name}, o.Now)
			if w.Unseen != nil || w.Budget != nil && w.Budget.Unavailable > w.Budget.MaxUnavailable {
				p.format = "wide"
				p.line(plain, "\n# -o wide")
				p.status(&w, o.Now)
				p.why(&w, target{kindCloneSet, w.Name}, o.Now)
			}
			compare(t, file, out.String())
		})
	}
}

// TestWhyPod prints why pod/NAME of each Pod in testdata/pods, at noon.
func TestWhyPod(t *testing.T) {
	const file = "testdata/pods/pull.yaml"
	var out bytes.Buffer
	for _, pod := range view.Each[*corev1.Pod](read(t, file)) {
		w := view.Of(view.Gather(noon, pod, nil))
		(&page{out: &out}).why(&w, target{kindPod, pod.Name}, noon)
	}
	compare(t, file, out.String())
}

// TestManyPods shows 2,000 Pods on a screen of 24 lines: the worst first, and the others in
// groups.
func TestManyPods(t *testing.T) {
	const file = "testdata/large/rollout.yaml"
	o := objects(t, file)
	o.Pods = many(o.Pods, 2000)
	w := view.Of(o)
	for _, height := range []int{24, 12} {
		var out bytes.Buffer
		p := &page{out: &out, width: 120, height: height, columns: 120}
		p.status(&w, o.Now)
		if lines := strings.Count(out.String(), "\n"); lines >= height || p.lines != lines {
			t.Errorf("%d lines, counted as %d, on a screen of %d", lines, p.lines, height)
		}
		compare(t, strings.Replace(file, ".yaml", fmt.Sprintf("-%d.yaml", height), 1), out.String())
	}
}

// TestWhyManyPods prints what 2,000 Pods wait for: Pods with the same wait together, or each Pod.
func TestWhyManyPods(t *testing.T) {
	const file = "testdata/large/rollout.yaml"
	o := objects(t, file)
	o.Pods = many(o.Pods, 2000)
	w := view.Of(o)
	var out, each bytes.Buffer
	(&page{out: &out}).why(&w, target{kindCloneSet, w.Name}, o.Now)
	compare(t, "testdata/large/why.yaml", out.String())
	(&page{out: &each, verbose: true}).why(&w, target{kindCloneSet, w.Name}, o.Now)
	waiting := list.Only(w.Members, func(p view.Pod) bool { return len(p.Waits) > 0 })
	checktest.Same(t, "Pods with a paragraph of their own", len(waiting), strings.Count(each.String(), "\nPod ")+1)
}

// TestNarrow: in 80 columns, the column of waits is the last to be cut.
func TestNarrow(t *testing.T) {
	for _, name := range []string{"rollout", "stuck", "partition"} {
		o := objects(t, "testdata/"+name+".yaml")
		w := view.Of(o)
		var out bytes.Buffer
		for _, width := range []int{100, 80} {
			p := &page{out: &out, columns: width, width: width}
			p.line(plain, "# %d columns", width)
			p.members(&w, o.Now)
		}
		compare(t, "testdata/narrow/"+name+".yaml", out.String())
	}
}

// TestCrowd: an event of several Pods is one line, and lines are in the order in which the events
// began.
func TestCrowd(t *testing.T) {
	c := &crowd{}
	for _, pod := range []string{"a", "b", "c", "d"} {
		c.add(pod, "leaves its registries")
	}
	c.add("b", "is gone")
	want := []string{"4 Pods leave their registries, such as a, b, c", "pod/b is gone"}
	checktest.Same(t, "lines", want, c.lines())
	checktest.Same(t, "lines after that", nil, c.lines())
}

// many returns count Pods: copies of each given one, as many as its annotation says, and of the last
// one for the rest.
func many(given []*corev1.Pod, count int) (all []*corev1.Pod) {
	for i, pod := range given {
		copies, err := strconv.Atoi(pod.Annotations["copies"])
		if err != nil {
			copies = count - len(all)
		}
		for n := range copies {
			next := pod.DeepCopy()
			next.Name = fmt.Sprintf("%s-%05d", pod.Name, n)
			next.UID = types.UID(fmt.Sprintf("%d-%d", i, n))
			all = append(all, next)
		}
	}
	return all
}

// compare compares the output with the golden text next to a file.
func compare(t *testing.T, file, got string) {
	t.Helper()
	golden := strings.TrimSuffix(file, "yaml") + "txt"
	if *update {
		checktest.NoError(t, os.WriteFile(golden, []byte(got), 0o600))
	}
	want := checktest.Must(os.ReadFile(golden))(t)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); go test . -update writes it:\n%s", golden, diff)
	}
}

// TestDoctor examines an installation in which everything is wrong, and one without a problem.
func TestDoctor(t *testing.T) {
	const file = "testdata/doctor/broken.yaml"
	all := read(t, file)
	var out bytes.Buffer
	p := &page{out: &out}
	p.findings(view.Examine(view.Clock{Now: noon}, view.Read{All: all, Missing: []string{"Registry"}}))
	p.line(plain, "\n# well")
	runs, guard := view.Each[*appsv1.Deployment](all)[1], view.Each[*admissionregistrationv1.ValidatingWebhookConfiguration](all)[0]
	guard.Webhooks = guard.Webhooks[2:]
	p.findings(view.Examine(view.Clock{Now: noon}, view.Read{All: []metav1.Object{runs, guard}}))
	compare(t, file, out.String())
}

// TestDoctorWithoutRights runs as a user who may list some kinds, in all namespaces or in one.
// Questions that could not be examined are no problems, and have an exit code of their own.
func TestDoctorWithoutRights(t *testing.T) {
	const file = "testdata/doctor/rights.yaml"
	var out bytes.Buffer
	for _, who := range []struct {
		name string
		// all are the kinds that the user may list in all namespaces, and shop those in namespace shop.
		all, shop []string
	}{
		{name: "nobody"},
		{name: "an editor of shop", shop: []string{"CloneSetList", "RegistrationList", "PodList"}},
		{name: "one who may not see Usher itself", all: []string{"CloneSetList", "RegistrationList", "RegistryList", "PodList", "EventList"}},
	} {
		objects := list.Map(read(t, file), func(o metav1.Object) client.Object { return o.(client.Object) })
		may := func(ctx context.Context, c client.WithWatch, l client.ObjectList, options ...client.ListOption) error {
			kind := reflect.TypeOf(l).Elem().Name()
			asked := (&client.ListOptions{}).ApplyOptions(options).Namespace
			if slices.Contains(who.all, kind) || asked == "shop" && slices.Contains(who.shop, kind) {
				return c.List(ctx, l, client.InNamespace(asked))
			}
			return apierrors.NewForbidden(corev1.Resource(kind), "", nil)
		}
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{List: may}).Build()
		found := checktest.Must((&session{namespace: "shop", client: c, reader: c}).readAll(t.Context()))(t)
		p := &page{out: &out}
		p.line(plain, "# %s", who.name)
		findings := view.Examine(view.Clock{Now: noon}, found)
		p.findings(findings)
		p.line(plain, "%v\n", judge(findings))
	}
	compare(t, file, out.String())
}

// TestRegistry compares what a registry lists with what it should list.
func TestRegistry(t *testing.T) {
	const file = "testdata/registry/diff.yaml"
	all := read(t, file)
	v := view.OfRegistry(noon, view.Each[*usherv1alpha1.Registry](all)[0], []view.Namespace{
		{Name: "shop", Objects: all}, {Name: "other", Unread: "not looked at: forbidden"},
	})
	var out bytes.Buffer
	p := &page{out: &out}
	p.registry(&v, noon, false)
	p.line(plain, "\n# --diff")
	p.registry(&v, noon, true)
	p.line(plain, "\n# --diff -o wide")
	p.format = "wide"
	p.use(&v.Uses[0])
	compare(t, file, out.String())
}

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// read reads a file's objects.
func read(t testing.TB, file string) (all []metav1.Object) {
	t.Helper()
	text, err := os.ReadFile(file)
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, document := range strings.Split(string(text), "\n---\n") {
		var object runtime.Object
		if err == nil {
			object, _, err = decoder.Decode([]byte(document), nil, nil)
		}
		if err != nil {
			t.Fatalf("%s: %v in %s", file, err, document)
		}
		all = append(all, object.(metav1.Object))
	}
	return all
}

// objects reads the one workload of a file and its objects.
func objects(t testing.TB, file string) view.Objects {
	t.Helper()
	all := read(t, file)
	o := view.Objects{
		Now: noon, Pods: view.Each[*corev1.Pod](all), Revisions: view.Each[*appsv1.ControllerRevision](all),
		Registrations: view.Each[*usherv1alpha1.Registration](all),
	}
	if i := slices.IndexFunc(all, view.IsWorkload); i >= 0 {
		of := view.Gather(noon, all[i], nil)
		o.Set, o.Other = of.Set, of.Other
	}
	return o
}

// TestPlan prints what the changes in testdata/plan/plan.yaml would do to the objects in
// testdata/*.yaml.
func TestPlan(t *testing.T) {
	const file = "testdata/plan/plan.yaml"
	var changes []struct {
		Name, File string
		// Image is as for --image, and Spec holds the other fields that change.
		Image string
		Spec  json.RawMessage
		// Updated is when the Pods were last updated in place; all of them got ready at 11:58.
		Updated string
	}
	checktest.NoError(t, yaml.UnmarshalStrict(checktest.Must(os.ReadFile(file))(t), &changes))
	var out bytes.Buffer
	p := &page{out: &out}
	quotas := []*corev1.ResourceQuota{{ObjectMeta: metav1.ObjectMeta{Name: "small"}, Status: corev1.ResourceQuotaStatus{
		Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("6")}, Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("5")},
	}}}
	for _, change := range changes {
		o := objects(t, "testdata/"+change.File+".yaml")
		for _, pod := range o.Pods {
			pod.UID = types.UID(pod.Name)
			if change.Updated != "" {
				metav1.SetMetaDataAnnotation(&pod.ObjectMeta, apps.AnnotationInPlaceUpdateState, `{"updateTimestamp":"`+change.Updated+`"}`)
			}
		}
		to := o.Set.DeepCopy()
		if change.Image != "" {
			to.Generation++
			changeImage(t, to, change.Image)
		}
		if change.Spec != nil {
			to.Generation++
			checktest.NoError(t, json.Unmarshal(change.Spec, &to.Spec))
		}
		f := checktest.Must(forecast.Of(forecast.Change{Objects: o, To: to, Quotas: quotas}))(t)
		p.line(plain, "# %s", change.Name)
		p.forecast(&f)
		p.line(plain, "")
	}
	compare(t, file, out.String())
}

// changeImage makes a change as --image does.
func changeImage(t testing.TB, set *apps.CloneSet, change string) {
	spec := checktest.Must((&planOptions{images: []string{change}, replicas: -1}).spec(set))(t)
	merged := checktest.Must(json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{"app": "web"}}, "spec": spec["template"].(map[string]any)["spec"]}))(t)
	checktest.NoError(t, set.Spec.Template.UnmarshalJSON(merged))
}

// TestNoResize: a plan asks whether the API server can resize Pods.
func TestNoResize(t *testing.T) {
	for resources, want := range map[string]bool{`{"name":"pods"},{"name":"pods/resize"}`: false, `{"name":"pods"},{"name":"pods/status"}`: true} {
		answers := map[string]string{
			"/api":    `{"kind":"APIVersions","versions":["v1"]}`,
			"/apis":   `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
			"/api/v1": `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[` + resources + `]}`,
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, answers[r.URL.Path])
		}))
		flags := genericclioptions.NewConfigFlags(false)
		flags.APIServer, flags.CacheDir, flags.KubeConfig = &server.URL, new(t.TempDir()), new("")
		known := checktest.Must(flags.ToDiscoveryClient())(t)
		checktest.Same(t, "with "+resources, want, checktest.Must((&session{discovery: known}).noResize())(t))
		server.Close()
	}
}

// TestReleaseOfAChangingPod: a change of the Pod by somebody else does not fail the command.
func TestReleaseOfAChangingPod(t *testing.T) {
	pod, conflicts := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-a", Finalizers: []string{"example.com/backup"}}}, 2
	c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(pod).Build(), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if conflicts--; conflicts >= 0 {
				return apierrors.NewConflict(corev1.Resource("pods"), o.GetName(), nil)
			}
			return c.Patch(ctx, o, patch, options...)
		},
	})
	s := &session{IOStreams: genericiooptions.NewTestIOStreamsDiscard(), namespace: "shop", client: c, reader: c}
	checktest.NoError(t, s.release(t.Context(), target{kindPod, "web-a"}, "example.com/backup", "a test"))
	checktest.NoError(t, s.get(t.Context(), target{kindPod, "web-a"}, pod))
	checktest.Same(t, "finalizers", 0, len(pod.Finalizers))
}

// TestWithoutManagers: objects from watches still show when a change was made that their controller has
// not seen.
func TestWithoutManagers(t *testing.T) {
	for observed, want := range map[int64]int{1: 1, 2: 0} {
		set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Generation: 2, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}}}
		set.Status.ObservedGeneration = observed
		checktest.Must(withoutManagers(set))(t)
		checktest.Same(t, fmt.Sprintf("managers of a set of which generation %d is seen", observed), want, len(set.ManagedFields))
	}
}

// TestFlags: the flags that kubectl has are read as kubectl reads them.
func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--dry-run": "dry", "--dry-run=server": "dry", "--dry-run=none": "", "--dry-run=client": "it is server or none",
		"-o jsonpath={.phase}/{.podList[*].name}": "Updating/web-a web-b web-c web-d web-e\n", "-o jsonpath=.budget.method": "InPlaceIfPossible\n",
		"-o jsonpath={": "is no JSONPath", "-o jsonpath={.none}": "none is not found; -o json shows what there is",
		"-o table": "it is none of json, jsonpath=",
	} {
		s := &session{}
		command := s.outputs(s.changes(&cobra.Command{}), "json")
		var out bytes.Buffer
		err := command.ParseFlags(strings.Fields(args))
		if w := view.Of(objects(t, "testdata/rollout.yaml")); err == nil && s.path != nil {
			err = (&page{out: &out, format: s.output, path: s.path}).print(&w, noon)
		}
		switch {
		case err != nil:
			out.WriteString(err.Error())
		case s.dryRun:
			out.WriteString("dry")
		}
		if got := out.String(); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}

// TestHelp: each command's own flags come without those of kubectl, which options lists.
func TestHelp(t *testing.T) {
	for args, want := range map[string]string{"status --help": "--wait", "options": "--context", "--version": "kubectl usher dev\n", "--help": "status "} {
		var out bytes.Buffer
		root := newCommand(genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &out, ErrOut: &out})
		root.SetArgs(strings.Fields(args))
		checktest.NoError(t, root.ExecuteContext(t.Context()))
		if text := out.String(); !strings.Contains(text, want) || args != "options" && strings.Contains(text, "--kubeconfig") {
			t.Errorf("%s prints\n%s", args, text)
		}
	}
}

// TestTakes: the forecast time of a change that stops is the time until it stops, or unknown.
func TestTakes(t *testing.T) {
	for _, one := range []struct {
		takes time.Duration
		stops []string
		want  string
	}{
		{time.Minute, nil, "about 1m0s, going by what the Pods took so far"},
		{time.Minute, []string{"a quota"}, "about 1m0s until it stops, going by what the Pods took so far"},
		{0, []string{"a quota"}, "unknown: it stops before a Pod is done"},
	} {
		checktest.Same(t, "text", one.want, takes(&forecast.Forecast{Takes: &metav1.Duration{Duration: one.takes}, Stops: one.stops}))
	}
}
