// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fxamacker/cbor/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/model"
)

// setOf is the one CloneSet; nil if there is none.
func setOf(o model.Objects) *apps.CloneSet {
	for _, set := range model.List[*apps.CloneSet](o) {
		return set
	}
	return nil
}

// cluster is one state of an exploration. It never changes, except for the maps of one
// under construction.
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

// passInProgress is all that a pass has read, and all answers it got. The rest of the
// pass follows from that.
type passInProgress struct {
	// base is what its caches show.
	base model.Objects
	// results are the answers to its requests, in their order.
	results []result
	// events counts what others have done since it began, if that is limited.
	events uint8
	// second reports whether it is a process's second pass on the same caches: the
	// results begin with those of the first.
	second bool
}

// result is the answer to one request.
type result struct {
	// kind is what the request was about.
	kind model.Kind
	err  error
	// seen are the objects in the answer.
	seen []client.Object
	// written is the object that the request changed; nil if none.
	written client.Object
	// gone reports whether the object has been removed since.
	gone bool
}

// interned is what an object contains, regardless of its version.
type interned struct {
	kind model.Kind
	name string
	// versions are copies of the object, by version.
	versions []client.Object
	// normalized is the content in a state without a pass, by the generation that the
	// kubelet acts on.
	normalized map[int64]normalized
	renamed    map[string]uint32
}

type normalized struct {
	id         uint32
	generation int64
}

// table numbers items by their keys.
type table[T any] struct {
	items []T
	ids   map[string]uint32
}

// id is the number of a key; make makes its item if the key is new.
func (t *table[T]) id(key string, make func() T) uint32 {
	id, ok := t.ids[key]
	if !ok {
		id = uint32(len(t.items)) // memory runs out long before
		t.ids[key], t.items = id, append(t.items, make())
	}
	return id
}

func newTable[T any]() table[T] { return table[T]{ids: map[string]uint32{}} }

// interner holds every object, every error and every run of an exploration.
type interner struct {
	objects table[*interned]
	errors  table[error]
	runs    table[*model.Run]
	// known are the objects in the interner.
	known map[client.Object]uint32
	// fresh are other objects of the state in progress.
	fresh map[client.Object]uint32
	// offset precedes the number of the first Pod of a state without a pass.
	offset int
}

// downFrom is where descending names start.
const downFrom = 100

func newInterner() *interner {
	return &interner{
		objects: newTable[*interned](), errors: newTable[error](), runs: newTable[*model.Run](),
		known: map[client.Object]uint32{}, fresh: map[client.Object]uint32{},
	}
}

// intern numbers the content of an object.
func (l *interner) intern(object client.Object) uint32 {
	if id, ok := l.known[object]; ok {
		return id
	}
	if id, ok := l.fresh[object]; ok {
		return id
	}
	kind := model.KindOf(object)
	versionless := model.WithVersion(object, "")
	data, err := json.Marshal(versionless)
	if err != nil { // the server holds what it has read from JSON
		panic(fmt.Sprintf("encode %s %s: %v", kind, object.GetName(), err))
	}
	sum := sha256.Sum256(append([]byte(kind), data...))
	id := l.objects.id(string(sum[:16]), func() *interned {
		return &interned{
			kind: kind, name: string(kind) + " " + object.GetName(), versions: []client.Object{versionless},
			normalized: map[int64]normalized{}, renamed: map[string]uint32{},
		}
	})
	l.fresh[object] = id
	return id
}

// at returns a version of a content, always the same object. The lowest version is 1.
func (l *interner) at(id uint32, version int) client.Object {
	c := l.objects.items[id]
	for len(c.versions) <= version {
		object := model.WithVersion(c.versions[0], strconv.Itoa(len(c.versions)))
		c.versions = append(c.versions, object)
		l.known[object] = id
	}
	return c.versions[version]
}

func (l *interner) errorID(err error) uint32 {
	return l.errors.id(fmt.Sprintf("%T %v", err, err), func() error { return err })
}

func (l *interner) runID(r *model.Run) uint32 {
	text := fmt.Sprint(r.Generation)
	for i := range r.Containers {
		c := &r.Containers[i]
		text = fmt.Sprint(text, c.Image, " ", c.ID, c.Up, c.Starting, c.Since.Unix())
	}
	return l.runs.id(text, func() *model.Run { return r })
}

// stateRecord is a state in numbers: two states with one record behave alike. For
// versions, only equality and order matter, and only among those of one object.
type stateRecord struct {
	_       struct{} `cbor:",toarray"`
	Edits   uint8
	Faults  uint16
	Objects []reference
	Runs    []uint32
	Pass    *passRecord
}

type passRecord struct {
	_       struct{} `cbor:",toarray"`
	Base    []reference
	Results []resultRecord
	Events  uint8
	Second  bool
}

type resultRecord struct {
	_             struct{} `cbor:",toarray"`
	Kind          model.Kind
	Error         uint32
	Seen, Written []reference
	Gone          bool
}

// reference is an interned object and the rank of its version.
type reference struct {
	_    struct{} `cbor:",toarray"`
	ID   uint32
	Rank int
}

// encode returns the record of a state as text.
func (l *interner) encode(c *cluster) string {
	w := &writer{interner: l, ranks: map[string][]int64{}}
	if c.pass == nil {
		c = l.normalize(c)
	} else {
		w.rank(c)
	}
	r := stateRecord{Edits: c.edits, Faults: c.faults, Objects: w.all(c.objects)}
	for _, pod := range model.Sorted(c.objects[model.Pods]) {
		r.Runs = append(r.Runs, l.runID(runOf(c.running, pod)))
	}
	if p := c.pass; p != nil {
		r.Pass = &passRecord{Base: w.all(p.base), Events: p.events, Second: p.second}
		for _, a := range p.results {
			out := resultRecord{Kind: a.kind, Error: l.errorID(a.err), Seen: w.references(a.seen), Gone: a.gone}
			if a.written != nil {
				out.Written = w.references([]client.Object{a.written})
			}
			r.Pass.Results = append(r.Pass.Results, out)
		}
	}
	clear(l.fresh)
	data, err := cbor.Marshal(r)
	if err != nil {
		panic(err) // numbers always encode
	}
	return string(data)
}

// writer writes a record; ranks are the versions of each object, in order.
type writer struct {
	interner *interner
	ranks    map[string][]int64
}

// rank orders the versions of each object.
func (w *writer) rank(c *cluster) {
	w.rankAll(c.objects)
	w.rankAll(c.pass.base)
	for i := range c.pass.results {
		for _, object := range c.pass.results[i].all() {
			w.rankOne(object)
		}
	}
	for name, versions := range w.ranks {
		slices.Sort(versions)
		w.ranks[name] = slices.Compact(versions)
	}
}

func (w *writer) rankAll(o model.Objects) {
	for _, kind := range kinds {
		for _, object := range o[kind] {
			w.rankOne(object)
		}
	}
}

func (w *writer) rankOne(object client.Object) {
	name := w.interner.objects.items[w.interner.intern(object)].name
	w.ranks[name] = append(w.ranks[name], versionOf(object))
}

func (r *result) all() []client.Object {
	if r.written == nil {
		return r.seen
	}
	return append(slices.Clone(r.seen), r.written)
}

func (w *writer) all(o model.Objects) []reference {
	var out []reference
	for _, kind := range kinds {
		out = append(out, w.references(model.Sorted(o[kind]))...)
	}
	return out
}

func (w *writer) references(objects []client.Object) []reference {
	var out []reference
	for _, object := range objects {
		id := w.interner.intern(object)
		rank := slices.Index(w.ranks[w.interner.objects.items[id].name], versionOf(object))
		out = append(out, reference{ID: id, Rank: max(rank, 0) + 1})
	}
	return out
}

// decode returns the state of a record.
func (l *interner) decode(state string) *cluster {
	var r stateRecord
	if err := cbor.Unmarshal([]byte(state), &r); err != nil {
		panic(err) // encode has written it
	}
	c := &cluster{edits: r.Edits, faults: r.Faults, objects: l.stored(r.Objects), running: map[types.UID]*model.Run{}}
	for i, pod := range model.Sorted(c.objects[model.Pods]) {
		c.running[pod.GetUID()] = l.runs.items[r.Runs[i]]
	}
	if p := r.Pass; p != nil {
		c.pass = &passInProgress{base: l.stored(p.Base), events: p.Events, second: p.Second}
		for _, a := range p.Results {
			out := result{kind: a.Kind, err: l.errors.items[a.Error], seen: l.list(a.Seen), gone: a.Gone}
			for _, written := range l.list(a.Written) {
				out.written = written
			}
			c.pass.results = append(c.pass.results, out)
		}
	}
	return c
}

func (l *interner) stored(references []reference) model.Objects {
	out := model.Objects{}
	for _, object := range l.list(references) {
		out.Put(model.KindOf(object), object)
	}
	return out
}

func (l *interner) list(references []reference) []client.Object {
	var out []client.Object
	for _, r := range references {
		out = append(out, l.at(r.ID, r.Rank))
	}
	return out
}

// runOf is what runs of a Pod.
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
		for _, object := range model.Sorted(c.objects[kind]) {
			run := runOf(c.running, object)
			found := l.normalizeObject(l.intern(object), run.Generation)
			if replacer != nil && kind != model.Revisions {
				found.id = l.rename(found.id, renaming, replacer)
			}
			plain := l.at(found.id, 1)
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

func (l *interner) normalizeObject(id uint32, generation int64) normalized {
	c := l.objects.items[id]
	if found, ok := c.normalized[generation]; ok {
		return found
	}
	found := normalized{id: id, generation: generation}
	switch o := model.WithVersion(c.versions[0], "").(type) {
	case *apps.CloneSet:
		o.Status = apps.CloneSetStatus{CurrentRevision: o.Status.CurrentRevision}
		o.Generation = 1
		found.id = l.intern(o)
	case *corev1.Pod:
		place := places(o.Generation, o.Status.ObservedGeneration, generation)
		o.Generation, o.Status.ObservedGeneration, found.generation = place[0], place[1], place[2]
		found.id = l.intern(o)
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
	for i, pod := range model.Sorted(pods) {
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

// numberOf is the number in the name of a Pod; 0 if there is none.
func numberOf(name string) int {
	n, _ := strconv.Atoi(name[max(len(name)-4, 0):]) // anything that is not a number counts as none
	return n
}

func (l *interner) rename(id uint32, renaming string, replacer *strings.Replacer) uint32 {
	c := l.objects.items[id]
	if found, ok := c.renamed[renaming]; ok {
		return found
	}
	found := l.intern(rewrite(c.versions[0], replacer.Replace))
	c.renamed[renaming] = found
	return found
}

// rewrite changes the text of an object.
func rewrite(object client.Object, change func(string) string) client.Object {
	data, err := json.Marshal(object)
	if err != nil { // the server holds what it has read from JSON
		panic(fmt.Sprintf("encode %s: %v", object.GetName(), err))
	}
	out := model.Clone(object)
	model.Clear(out)
	if err := json.Unmarshal([]byte(change(string(data))), out); err != nil {
		panic(fmt.Sprintf("decode %s: %v", object.GetName(), err))
	}
	return out
}
