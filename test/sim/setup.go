// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/test/model"
)

// Config describes a run, except for what its user does.
type Config struct {
	Seed     uint64
	Process  ProcessConfig
	Nodes    NodeConfig
	Operator OperatorConfig
	// Steady makes everything always take the same time.
	Steady bool
	// Accepts means that the API server refuses no change of its own.
	Accepts bool
	// Restart is how long it takes until another process replaces a crashed one.
	Restart time.Duration
}

// Calm returns a cluster without faults, with round numbers, in which everything always takes the same
// time, so that a story changes only if the behaviour of an actor changes.
func Calm() Config {
	return Config{
		Steady:  true,
		Process: ProcessConfig{Lag: Lag{Least: time.Millisecond, Most: 20 * time.Millisecond}, Speed: 4 * time.Millisecond, Starts: 32},
		Nodes: NodeConfig{
			Nodes: 2, Notice: 50 * time.Millisecond, Start: 2 * time.Second, Stop: time.Second,
			Report: 20 * time.Millisecond, Schedule: 50 * time.Millisecond, Resize: time.Second,
		},
		Operator: OperatorConfig{Notice: 50 * time.Millisecond, Answer: time.Second},
		Restart:  5 * time.Second,
	}
}

// Simulation is one run.
type Simulation struct {
	World  *World
	Server *model.Server
	config Config

	nodes     *nodes
	images    images
	processes []*Process
	key       types.NamespacedName
	// closing reports whether the faults are over.
	closing bool
	// trouble is the API server's trouble; at idleFrom it will have carried out all writes.
	trouble  trouble
	idleFrom time.Time
	still    stillness
	// plannedEnd is when a random schedule ends.
	plannedEnd time.Duration
	// refusal describes what the API server refuses.
	refusal refusal
	// refusedOnce reports whether it has ever refused a change.
	refusedOnce bool
	// templates are all templates the set has had.
	templates []apps.PodTemplate
	// edited is how many generations of the set its user has requested, if the explorer normalizes
	// their numbers; otherwise 0.
	edited int64
	// unprotected reports whether Pods may have lost a hook through the fault of the operator
	// or the user alone.
	unprotected bool
	// revisions maps templates to the names of their revisions.
	revisions map[string]string
	// reuseDisabled reports whether the user ever disabled the reuse of claims, and
	// listed holds all names that were ever in podsToDelete.
	reuseDisabled bool
	listed        []string
}

// kinds lists the kinds in the order in which a run processes them.
var kinds = []model.Kind{model.CloneSets, model.Revisions, model.Claims, model.Pods, model.Nodes}

// key is short for the name of an object.
func key(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// empty returns a cluster without actors.
func empty(config Config, set types.NamespacedName) *Simulation {
	w := newWorld(config.Seed)
	w.steady = config.Steady
	s := &Simulation{
		World: w, Server: model.NewServer(w.now), config: config, key: set, revisions: map[string]string{},
		unprotected: config.Operator.Careless,
		images:      images{has: map[plan.ImageOnNode]bool{}, rejected: map[plan.ImageOnNode]bool{}},
	}
	s.Server.Refuses = s.refuses
	s.nodes = &nodes{Simulation: s, Node: model.Node{Broken: map[string]bool{}}, pods: map[types.UID]*running{}, down: map[string]bool{}}
	return s
}

// New creates a cluster with one CloneSet and one controller process.
func New(config Config, set *apps.CloneSet) *Simulation {
	s := empty(config, client.ObjectKeyFromObject(set))
	s.Server.Observers = []func(*model.Commit){
		s.observe, protector{s}.observe, collector{s}.observe, s.nodes.observe, operator{s}.observe,
	}
	s.World.leaps = s.judgeStillness
	s.launch(config.Process)
	must(s.Server.Create("user", set, false))
	return s
}

// launch starts a controller process; when it crashes, another one follows.
func (s *Simulation) launch(config ProcessConfig) *Process {
	n := len(s.processes)
	name := "usher-" + strings.Repeat(string(rune('a'+n%26)), 1+n/26)
	p := newProcess(s, name, config)
	p.onCrash = func() { s.World.after(s.config.Restart, func() { s.launch(s.successor()) }) }
	s.processes = append(s.processes, p)
	return p
}

// successor configures a process that takes over.
func (s *Simulation) successor() ProcessConfig {
	config := s.config.Process
	config.CrashAt, config.LoseAt = 0, 0
	if s.closing {
		config = quiet(config)
	}
	return config
}

// quiet configures a process without faults and with short delays.
func quiet(config ProcessConfig) ProcessConfig {
	config.Faults = Faults{}
	config.Lags = nil
	config.Lag = Lag{Least: time.Millisecond, Most: 10 * time.Millisecond}
	return config
}

func isProcess(actor string) bool { return strings.HasPrefix(actor, "usher-") }

// observe receives every commit: it records it, checks the rules, and passes it to the caches.
func (s *Simulation) observe(c *model.Commit) {
	s.World.record(c)
	s.moved(c)
	s.remember(c.Object())
	for _, p := range s.processes {
		if p.name == c.Actor {
			s.judge(p, c)
		}
	}
	s.judgeCollected(c)
	for _, p := range s.processes {
		if !p.dead {
			p.caches[c.Kind].plan(len(s.Server.Log[c.Kind]))
		}
	}
}

// Set reads the CloneSet from the server.
func (s *Simulation) Set() *apps.CloneSet { return model.Get[*apps.CloneSet](s.Server.Objects, s.key) }

// Edit lets the user change the CloneSet.
func (s *Simulation) Edit(what string, change func(*apps.CloneSet)) {
	s.World.say("user", "%s", what)
	if set := s.Set(); set != nil {
		s.templates = append(s.templates, set.Spec.Template)
	}
	_, err := s.Server.Update("user", model.CloneSets, s.key, "", func(object client.Object) error {
		change(object.(*apps.CloneSet))
		return nil
	})
	if err != nil {
		s.World.say("user", "is refused: %v", err)
	}
}

// Pods lists the set's Pods on the server, by name.
func (s *Simulation) Pods() []*corev1.Pod { return owned[*corev1.Pod](s) }

// owned lists the objects on the server that the set owns, by name.
func owned[T client.Object](s *Simulation) []T {
	set := s.Set()
	return slices.DeleteFunc(model.List[T](s.Server.Objects), func(object T) bool {
		return set == nil || model.OwnerOf(object) != string(set.UID)
	})
}

func addHooks(template *corev1.PodTemplateSpec, hooks *apps.Lifecycle) {
	for _, h := range []*apps.LifecycleHook{hooks.InPlaceUpdate, hooks.PreDelete} {
		if h == nil {
			continue
		}
		maps.Copy(template.Labels, h.LabelsHandler)
		template.Finalizers = append(template.Finalizers, lacking(h.FinalizersHandler, template.Finalizers)...)
	}
	if n := hooks.PreNormal; n != nil {
		for key := range n.LabelsHandler {
			template.Labels[key] = "false"
		}
	}
}

// must is for calls that cannot fail.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// decode reads JSON that is known to fit.
func decode[T any](data []byte) (out T) {
	if err := json.Unmarshal(data, &out); err != nil {
		panic(err)
	}
	return out
}

// Retemplate changes the template of a CloneSet. Its keys are sorted, so that a patch of the
// CloneSet leaves it unchanged byte for byte.
func Retemplate(change func(*corev1.PodTemplateSpec)) func(*apps.CloneSet) {
	return func(set *apps.CloneSet) {
		template := must(set.Spec.Template.Decode())
		change(template)
		raw := apps.NewPodTemplate(*template)
		set.Spec.Template = decode[apps.PodTemplate](must(json.Marshal(decode[any](raw.Raw()))))
	}
}

// Undo merges the data of a revision into the CloneSet, including its directive.
func Undo(data []byte) func(*apps.CloneSet) {
	return func(set *apps.CloneSet) {
		*set = decode[apps.CloneSet](must(jsonpatch.MergePatch(must(json.Marshal(set)), data)))
	}
}
