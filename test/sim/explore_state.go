// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

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
	// settled is the content in a state without a pass, by the generation that the
	// kubelet acts on.
	settled map[int64]settled
	renamed map[string]uint32
}

type settled struct {
	id         uint32
	generation int64
}

// interner holds every object and every error of an exploration.
type interner struct {
	interned []*interned
	ids      map[[16]byte]uint32
	// known are the objects in the interner.
	known map[client.Object]uint32
	// fresh are other objects of the state in progress.
	fresh    map[client.Object]uint32
	errors   []error
	errorIDs map[string]uint16
	runs     []*model.Run
	runIDs   map[string]uint16
	// offset precedes the number of the first Pod of a state without a pass.
	offset int
}

// downFrom is where descending names start.
const downFrom = 100

func newInterner() *interner {
	return &interner{
		ids: map[[16]byte]uint32{}, known: map[client.Object]uint32{}, fresh: map[client.Object]uint32{},
		errors: []error{nil}, errorIDs: map[string]uint16{}, runIDs: map[string]uint16{},
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
	id, ok := l.ids[[16]byte(sum[:16])]
	if !ok {
		id = numbered[uint32](len(l.interned))
		l.ids[[16]byte(sum[:16])] = id
		l.interned = append(l.interned, &interned{
			kind: kind, name: string(kind) + " " + object.GetName(), versions: []client.Object{versionless},
			settled: map[int64]settled{}, renamed: map[string]uint32{},
		})
	}
	l.fresh[object] = id
	return id
}

// at returns a version of a content, always the same object. The lowest version is 1.
func (l *interner) at(id uint32, version int) client.Object {
	c := l.interned[id]
	for len(c.versions) <= version {
		object := model.WithVersion(c.versions[0], strconv.Itoa(len(c.versions)))
		c.versions = append(c.versions, object)
		l.known[object] = id
	}
	return c.versions[version]
}

// numbered is the next number of a list. If numbers wrapped around, two states would
// become one, and the explorer would skip a state that it never saw.
func numbered[T uint16 | uint32](length int) T {
	if id := T(length); int(id) == length {
		return id
	}
	panic(fmt.Sprintf("the model is too large for the explorer: %d contents, errors or runs", length))
}

// errorID numbers an error; 0 is none.
func (l *interner) errorID(err error) uint16 {
	if err == nil {
		return 0
	}
	text := fmt.Sprintf("%T %v", err, err)
	id, ok := l.errorIDs[text]
	if !ok {
		id = numbered[uint16](len(l.errors))
		l.errors, l.errorIDs[text] = append(l.errors, err), id
	}
	return id
}

// runID numbers what runs of a Pod.
func (l *interner) runID(r *model.Run) uint16 {
	text := fmt.Sprint(r.Generation)
	for i := range r.Containers {
		c := &r.Containers[i]
		text = fmt.Sprint(text, c.Image, " ", c.ID, c.Up, c.Starting, c.Since.Unix())
	}
	id, ok := l.runIDs[text]
	if !ok {
		id = numbered[uint16](len(l.runs))
		l.runs, l.runIDs[text] = append(l.runs, r), id
	}
	return id
}

// key is a compact form of a state: two states with one key behave alike. For versions,
// only equality and order matter, and only among those of one object.
type writer struct {
	interner *interner
	ranks    map[string][]int64
	out      []byte
}

// encode returns the key of a state.
func (l *interner) encode(c *cluster) string {
	if c.pass == nil {
		c = l.settle(c)
	}
	w := &writer{interner: l, ranks: map[string][]int64{}, out: make([]byte, 0, 128)}
	if c.pass != nil {
		w.rank(c)
	}
	w.out = append(w.out, c.edits, byte(c.faults), byte(c.faults>>8))
	w.objects(c.objects)
	for _, pod := range model.Sorted(c.objects[model.Pods]) {
		w.out = binary.LittleEndian.AppendUint16(w.out, l.runID(runOf(c.running, pod)))
	}
	if c.pass != nil {
		w.pass(c.pass)
	}
	clear(l.fresh)
	return string(w.out)
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
	name := w.interner.interned[w.interner.intern(object)].name
	w.ranks[name] = append(w.ranks[name], versionOf(object))
}

func (r *result) all() []client.Object {
	if r.written == nil {
		return r.seen
	}
	return append(slices.Clone(r.seen), r.written)
}

func (w *writer) objects(o model.Objects) {
	count := 0
	for _, kind := range kinds {
		count += len(o[kind])
	}
	w.out = append(w.out, byte(count))
	for _, kind := range kinds {
		for _, object := range model.Sorted(o[kind]) {
			w.object(object)
		}
	}
}

func (w *writer) object(object client.Object) {
	id := w.interner.intern(object)
	place := slices.Index(w.ranks[w.interner.interned[id].name], versionOf(object))
	w.out = binary.LittleEndian.AppendUint32(w.out, id)
	w.out = append(w.out, byte(max(place, 0)+1))
}

func (w *writer) pass(f *passInProgress) {
	flags := byte(0)
	if f.second {
		flags = 1
	}
	w.out = append(w.out, 'F', flags, f.events)
	w.objects(f.base)
	w.out = append(w.out, byte(len(f.results)))
	for i := range f.results {
		r := &f.results[i]
		w.out = binary.LittleEndian.AppendUint16(w.out, w.interner.errorID(r.err))
		flags := byte(0)
		if r.written != nil {
			flags |= 1
		}
		if r.gone {
			flags |= 2
		}
		w.out = append(w.out, flags, byte(slices.Index(kinds, r.kind)), byte(len(r.seen)))
		for _, object := range r.all() {
			w.object(object)
		}
	}
}

// reader reads a key.
type reader struct {
	interner *interner
	in       string
}

func (r *reader) byte() byte {
	b := r.in[0]
	r.in = r.in[1:]
	return b
}

func (r *reader) short() uint16 {
	value := binary.LittleEndian.Uint16([]byte(r.in[:2]))
	r.in = r.in[2:]
	return value
}

func (r *reader) object() client.Object {
	id := binary.LittleEndian.Uint32([]byte(r.in[:4]))
	r.in = r.in[4:]
	return r.interner.at(id, int(r.byte()))
}

func (r *reader) objects() model.Objects {
	out := model.Objects{}
	for range int(r.byte()) {
		object := r.object()
		out.Put(model.KindOf(object), object)
	}
	return out
}

// decode returns the state of a key.
func (l *interner) decode(state string) *cluster {
	r := &reader{interner: l, in: state}
	c := &cluster{running: map[types.UID]*model.Run{}}
	c.edits = r.byte()
	c.faults = uint16(r.byte()) | uint16(r.byte())<<8
	c.objects = r.objects()
	for _, pod := range model.Sorted(c.objects[model.Pods]) {
		c.running[pod.GetUID()] = l.runs[r.short()]
	}
	if len(r.in) > 0 {
		r.byte()
		c.pass = r.pass()
	}
	return c
}

func (r *reader) pass() *passInProgress {
	f := &passInProgress{second: r.byte() == 1, events: r.byte()}
	f.base = r.objects()
	for range int(r.byte()) {
		answer := result{err: r.interner.errors[r.short()]}
		flags := r.byte()
		answer.gone = flags&2 != 0
		answer.kind = kinds[r.byte()]
		for range int(r.byte()) {
			answer.seen = append(answer.seen, r.object())
		}
		if flags&1 != 0 {
			answer.written = r.object()
		}
		f.results = append(f.results, answer)
	}
	return f
}

// runOf is what runs of a Pod.
func runOf(running map[types.UID]*model.Run, pod client.Object) *model.Run {
	if run := running[pod.GetUID()]; run != nil {
		return run
	}
	return &model.Run{}
}

// settle normalizes a state without a pass. As no process remembers anything to compare
// with, versions do not matter; of generations and names only the order matters; and
// any pass recomputes the status, except the current revision.
func (l *interner) settle(c *cluster) *cluster {
	out := &cluster{objects: model.Objects{}, running: map[types.UID]*model.Run{}, edits: c.edits, faults: c.faults}
	renaming, replacer := l.renaming(c.objects[model.Pods])
	for _, kind := range kinds {
		for _, object := range model.Sorted(c.objects[kind]) {
			run := runOf(c.running, object)
			found := l.settleObject(l.intern(object), run.Generation)
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

func (l *interner) settleObject(id uint32, generation int64) settled {
	c := l.interned[id]
	if found, ok := c.settled[generation]; ok {
		return found
	}
	found := settled{id: id, generation: generation}
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
	c.settled[generation] = found
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
	c := l.interned[id]
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
