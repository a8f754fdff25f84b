// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/model"
)

// setOf returns the one CloneSet; nil if there is none.
func setOf(o model.Objects) *apps.CloneSet {
	for _, set := range model.List[*apps.CloneSet](o) {
		return set
	}
	return nil
}

// cluster is one state of an exploration. It never changes.
type cluster struct {
	objects model.Objects
	running map[types.UID]*model.Run
	// edits is how many of the user's edits have been made.
	edits uint8
	// faults are the faults that have happened, as bits.
	faults uint16
	// pass is the pass in progress; nil if there is none.
	pass *passInProgress
}

// passInProgress has everything that a pass has read, and all answers that it got. These determine the
// rest of the pass.
type passInProgress struct {
	// base has the objects in its caches.
	base model.Objects
	// results are the answers to its requests, in their order.
	results []*result
	// events counts the actions of others since it began, if their number is limited.
	events uint8
	// second reports whether it is a process's second pass on the same caches: the
	// results begin with those of the first.
	second bool
}

// result is the answer to one request.
type result struct {
	// kind is the kind of objects in the request.
	kind model.Kind
	err  error
	// seen are the objects in the answer.
	seen []client.Object
	// absent are the Pods that the answer shows to be gone.
	absent []types.UID
	// written is the object that the request changed; nil if none.
	written client.Object
	// gone reports whether the object has been removed since.
	gone bool
}

// during returns the state with another pass in progress, or with none.
func (c *cluster) during(pass *passInProgress) *cluster {
	out := *c
	out.pass = pass
	return &out
}

// begin returns the state at the start of a pass.
func (c *cluster) begin() *cluster { return c.during(&passInProgress{base: c.objects}) }

// interned is the content of an object, regardless of its version.
type interned struct {
	id   int
	name string
	// versions are copies of the object, by version.
	versions []client.Object
	// normalized is the content in a state without a pass, by the generation that the
	// kubelet acts on.
	normalized map[int64]normalized
	renamed    map[string]*interned
}

type normalized struct {
	*interned
	generation int64
}

// table numbers equal items by their keys, and keeps the first of them.
type table[T any] map[string]numbered[T]

type numbered[T any] struct {
	id   int
	item T
}

// interner holds all parts of states.
type interner struct {
	contents map[[sha256.Size]byte]*interned
	objects  table[model.Objects]
	running  table[map[types.UID]*model.Run]
	results  table[*result]
	// known are the objects in the interner.
	known map[client.Object]*interned
	// fresh are other objects of the current state.
	fresh map[client.Object]*interned
	// offset precedes the number of the first Pod of a state without a pass.
	offset int
}

// downFrom is where descending names start.
const downFrom = 100

func newInterner() *interner {
	return &interner{
		contents: map[[sha256.Size]byte]*interned{}, objects: table[model.Objects]{}, running: table[map[types.UID]*model.Run]{},
		results: table[*result]{}, known: map[client.Object]*interned{}, fresh: map[client.Object]*interned{},
	}
}

// intern finds the content of an object.
func (l *interner) intern(object client.Object) *interned {
	if found := cmp.Or(l.known[object], l.fresh[object]); found != nil {
		return found
	}
	kind := model.KindOf(object)
	versionless := model.WithVersion(object, "")
	sum := sha256.Sum256(append([]byte(kind), must(json.Marshal(versionless))...))
	found := l.contents[sum]
	if found == nil {
		found = &interned{
			id: len(l.contents), name: string(kind) + " " + object.GetName(), versions: []client.Object{versionless},
			normalized: map[int64]normalized{}, renamed: map[string]*interned{},
		}
		l.contents[sum] = found
	}
	l.fresh[object] = found
	return found
}

// at returns a version of a content, always the same object. The lowest version is 1.
func (l *interner) at(c *interned, version int) client.Object {
	for len(c.versions) <= version {
		object := model.WithVersion(c.versions[0], strconv.Itoa(len(c.versions)))
		c.versions = append(c.versions, object)
		l.known[object] = c
	}
	return c.versions[version]
}

// canonical returns the representative of all states that behave like the given one, and its key. Of
// versions, only equality and order matter, and only among the versions of one object.
func (l *interner) canonical(c *cluster) (string, *cluster) {
	w := &writer{interner: l}
	if c.pass == nil {
		c = l.normalize(c)
	} else {
		w.rank(c)
	}
	out := *c
	w.key = fmt.Appendf(nil, "%d %d", c.edits, c.faults)
	out.objects, out.running = w.all(c.objects), w.runs(c)
	if p := c.pass; p != nil {
		w.key = fmt.Appendf(w.key, " %d %t", p.events, p.second)
		base := w.all(p.base)
		out.pass = &passInProgress{base: base, results: list.Map(p.results, w.answer), events: p.events, second: p.second}
	}
	clear(l.fresh)
	return string(w.key), &out
}

// writer writes the key of a state, and replaces the parts of the state by equal ones that
// the interner holds.
type writer struct {
	*interner
	// ranks are the versions of each object, in order.
	ranks map[string][]int64
	key   []byte
}

// keep adds a part, by its own key, to the key of the state.
func keep[T any](w *writer, t table[T], key string, part T) T {
	found, ok := t[key]
	if !ok {
		found = numbered[T]{len(t), part}
		t[key] = found
	}
	w.key = fmt.Appendf(w.key, " %d", found.id)
	return found.item
}

// rank orders the versions of each object.
func (w *writer) rank(c *cluster) {
	w.ranks = map[string][]int64{}
	all := slices.Concat(inOrder(c.objects), inOrder(c.pass.base))
	for _, r := range c.pass.results {
		all = append(all, r.all()...)
	}
	for _, object := range all {
		name := w.intern(object).name
		w.ranks[name] = append(w.ranks[name], model.Version(object))
	}
	for name, versions := range w.ranks {
		slices.Sort(versions)
		w.ranks[name] = slices.Compact(versions)
	}
}

func (r *result) all() []client.Object {
	if r.written == nil {
		return r.seen
	}
	return append(slices.Clone(r.seen), r.written)
}

// refer describes objects, and returns the interner's own.
func (w *writer) refer(objects ...client.Object) (string, []client.Object) {
	var key []byte
	out := make([]client.Object, len(objects))
	for i, object := range objects {
		content := w.intern(object)
		rank := max(slices.Index(w.ranks[content.name], model.Version(object)), 0) + 1
		key, out[i] = fmt.Appendf(key, "%d:%d ", content.id, rank), w.at(content, rank)
	}
	return string(key), out
}

func inOrder(o model.Objects) []client.Object {
	return slices.Concat(list.Map(kinds, func(kind model.Kind) []client.Object { return model.Sorted(o[kind]) })...)
}

func (w *writer) all(o model.Objects) model.Objects {
	key, objects := w.refer(inOrder(o)...)
	out := model.Objects{}
	for _, object := range objects {
		out.Put(model.KindOf(object), object)
	}
	return keep(w, w.objects, key, out)
}

// runs returns the running containers of each Pod.
func (w *writer) runs(c *cluster) map[types.UID]*model.Run {
	key, out := "", map[types.UID]*model.Run{}
	for _, pod := range model.Sorted(c.objects[model.Pods]) {
		run := runOf(c.running, pod)
		out[pod.GetUID()] = run
		key += fmt.Sprint(pod.GetUID(), " ", run.Generation)
		for i := range run.Containers {
			c := &run.Containers[i]
			key += fmt.Sprint(" ", c.Image, " ", c.ID, c.Up, c.Starting, c.Since.Unix())
		}
	}
	return keep(w, w.running, key, out)
}

// answer returns the interner's copy of the answer to a request.
func (w *writer) answer(r *result) *result {
	out := *r
	seen, objects := w.refer(r.seen...)
	out.seen = objects
	key := fmt.Sprintf("%s %T %v %t %s", r.kind, r.err, r.err, r.gone, seen)
	if r.written != nil {
		written, objects := w.refer(r.written)
		key, out.written = key+"/ "+written, objects[0]
	}
	return keep(w, w.results, key, &out)
}

// runOf returns the running containers of a Pod.
func runOf(running map[types.UID]*model.Run, pod client.Object) *model.Run {
	if run := running[pod.GetUID()]; run != nil {
		return run
	}
	return &model.Run{}
}

// normalize normalizes a state without a pass. As no process remembers anything to compare
// with, versions do not matter; of generations and names only the order matters; and
// any pass recomputes the status, except the current revision.
func (l *interner) normalize(c *cluster) *cluster {
	out := &cluster{objects: model.Objects{}, running: map[types.UID]*model.Run{}, edits: c.edits, faults: c.faults}
	renaming, replacer := l.renaming(c.objects[model.Pods])
	for _, kind := range kinds {
		for _, object := range c.objects[kind] {
			run := runOf(c.running, object)
			found := l.normalizeObject(l.intern(object), run.Generation)
			if replacer != nil && kind != model.Revisions {
				found.interned = l.rename(found.interned, renaming, replacer)
			}
			plain := l.at(found.interned, 1)
			out.objects.Put(kind, plain)
			if kind == model.Pods {
				run = run.Clone()
				run.Generation = found.generation
				out.running[plain.GetUID()] = run
			}
		}
	}
	return out
}

func (l *interner) normalizeObject(c *interned, generation int64) normalized {
	if found, ok := c.normalized[generation]; ok {
		return found
	}
	found := normalized{c, generation}
	switch o := model.WithVersion(c.versions[0], "").(type) {
	case *apps.CloneSet:
		o.Status = apps.CloneSetStatus{CurrentRevision: o.Status.CurrentRevision}
		o.Generation = 1
		found.interned = l.intern(o)
	case *corev1.Pod:
		place := places(o.Generation, o.Status.ObservedGeneration, generation)
		o.Generation, o.Status.ObservedGeneration, found.generation = place[0], place[1], place[2]
		found.interned = l.intern(o)
	}
	c.normalized[generation] = found
	return found
}

// places replaces numbers by their ranks; 0 stays 0.
func places(numbers ...int64) []int64 {
	order := slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(numbers))), func(n int64) bool { return n == 0 })
	out := make([]int64, len(numbers))
	for i, n := range numbers {
		out[i] = int64(slices.Index(order, n) + 1)
	}
	return out
}

// renaming closes the gaps in the names of the Pods; nil if there are none. The planner
// only compares names and looks them up, so only their order matters.
func (l *interner) renaming(pods map[types.NamespacedName]client.Object) (string, *strings.Replacer) {
	var pairs []string
	ours := slices.DeleteFunc(model.Sorted(pods), pulls) // names of pull Pods stay: they depend on the image
	for i, pod := range ours {
		is, shall := numberOf(pod.GetName()), l.offset+i+1
		if is != shall {
			pairs = append(pairs, podID(is), podID(shall), string(podUID(is)), string(podUID(shall)))
		}
	}
	if len(pairs) == 0 {
		return "", nil
	}
	return strings.Join(pairs, " "), strings.NewReplacer(pairs...)
}

func podID(n int) string     { return fmt.Sprintf("p%04d", n) }
func podUID(n int) types.UID { return types.UID(fmt.Sprintf("uid-%04d", n)) }

// numberOf returns the number in the name of a Pod; 0 if there is none.
func numberOf(name string) int {
	n, _ := strconv.Atoi(name[max(len(name)-4, 0):]) // anything that is not a number counts as none
	return n
}

func (l *interner) rename(c *interned, renaming string, replacer *strings.Replacer) *interned {
	found := c.renamed[renaming]
	if found == nil {
		found = l.intern(rewrite(c.versions[0], replacer.Replace))
		c.renamed[renaming] = found
	}
	return found
}

// rewrite changes the text of an object.
func rewrite(object client.Object, change func(string) string) client.Object {
	out := model.Empty(object)
	if err := json.Unmarshal([]byte(change(string(must(json.Marshal(object))))), out); err != nil {
		panic(fmt.Sprintf("decode %s: %v", object.GetName(), err))
	}
	return out
}
