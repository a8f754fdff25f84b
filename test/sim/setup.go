// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
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
	// Restart is how long it takes until another process replaces a crashed one.
	Restart time.Duration
	// Patience is how long the set may take to settle after the last
	// fault. Default: 4 hours of virtual time.
	Patience time.Duration
}

// Calm is a cluster without faults, with round numbers.
func Calm() Config {
	return Config{
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
	operator  *operator
	processes []*Process
	key       types.NamespacedName
	// closing reports whether the faults are over.
	closing bool
	// plannedEnd is when a random schedule ends.
	plannedEnd time.Duration
	// templates are all templates the set has had.
	templates []apps.PodTemplate
	// wished is how many generations of the set its user has requested, where the
	// explorer folds their numbers; else 0.
	edited int64
	// unprotected reports whether the user may have left Pods without their hooks.
	unprotected bool
	// revisionNames maps generations of the set to update revisions.
	revisionNames map[int64]string
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

var errOutdated = errors.New("the object has changed")

// New creates a cluster with one CloneSet and one controller process.
func New(config Config, set *apps.CloneSet) *Simulation {
	w := newWorld(config.Seed)
	w.steady = config.Steady
	s := &Simulation{
		World: w, Server: model.NewServer(w.now), config: config, revisionNames: map[int64]string{},
		key: client.ObjectKeyFromObject(set),
	}
	s.Server.Observers = append(s.Server.Observers, s.observe)
	newProtector(w, s.Server)
	newCollector(w, s.Server)
	s.nodes = newNodes(w, s.Server, config.Nodes)
	s.operator = newOperator(w, s.Server, s.key, config.Operator)
	s.launch(config.Process)
	if _, err := s.Server.Create("user", set, false); err != nil {
		w.fail("setup", "create the CloneSet: %v", err)
	}
	return s
}

// launch starts a controller process; when it crashes, another one follows.
func (s *Simulation) launch(config ProcessConfig) *Process {
	name := fmt.Sprintf("usher-%s", letters(len(s.processes)))
	p := newProcess(s.World, s.Server, name, config)
	p.nodes = s.nodes
	p.onCrash = func() {
		s.World.after(s.config.Restart, func() { s.launch(s.successor()) })
	}
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

func letters(n int) string {
	out := ""
	for {
		out = string(rune('a'+n%26)) + out
		n = n/26 - 1
		if n < 0 {
			return out
		}
	}
}

func isProcess(actor string) bool { return strings.HasPrefix(actor, "usher-") }

// observe receives every commit: it notes it, checks the rules, and passes it to the
// caches.
func (s *Simulation) observe(c *model.Commit) {
	s.World.record(c)
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
func (s *Simulation) Set() *apps.CloneSet {
	return model.Get[*apps.CloneSet](s.Server.Objects, s.key)
}

// Edit lets the user change the CloneSet.
func (s *Simulation) Edit(what string, change func(*apps.CloneSet)) {
	s.World.say("user", "%s", what)
	if set := s.Set(); set != nil {
		s.templates = append(s.templates, set.Spec.Template)
	}
	_, err := s.Server.Update("user", model.CloneSets, s.key, "", func(object client.Object) error {
		if set, ok := object.(*apps.CloneSet); ok {
			change(set)
		}
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
		for key, value := range h.LabelsHandler {
			template.Labels[key] = value
		}
		for _, f := range h.FinalizersHandler {
			if !slices.Contains(template.Finalizers, f) {
				template.Finalizers = append(template.Finalizers, f)
			}
		}
	}
	if n := hooks.PreNormal; n != nil {
		for key := range n.LabelsHandler {
			template.Labels[key] = "false"
		}
	}
}

// rawTemplate encodes a template with sorted keys, so that a patch of the CloneSet
// leaves it unchanged byte for byte.
func rawTemplate(template corev1.PodTemplateSpec) apps.PodTemplate {
	out := apps.NewPodTemplate(template)
	var value any
	if err := json.Unmarshal(out.Raw(), &value); err != nil {
		return out
	}
	data, err := json.Marshal(value)
	if err != nil {
		return out
	}
	var ordered apps.PodTemplate
	if err := json.Unmarshal(data, &ordered); err != nil {
		return out
	}
	return ordered
}

// Retemplate changes the template of a CloneSet.
func Retemplate(change func(*corev1.PodTemplateSpec)) func(*apps.CloneSet) {
	return func(set *apps.CloneSet) {
		template, err := set.Spec.Template.Decode()
		if err != nil {
			return
		}
		change(template)
		set.Spec.Template = rawTemplate(*template)
	}
}

// Undo merges the data of a revision into the CloneSet, including its directive.
func Undo(data []byte) func(*apps.CloneSet) {
	return func(set *apps.CloneSet) {
		was, err := json.Marshal(map[string]any{"spec": map[string]any{"template": set.Spec.Template}})
		if err != nil {
			return
		}
		merged, err := jsonpatch.MergePatch(was, data)
		if err != nil {
			return
		}
		var is struct {
			Spec struct{ Template apps.PodTemplate }
		}
		if err := json.Unmarshal(merged, &is); err == nil {
			set.Spec.Template = is.Spec.Template
		}
	}
}

func templateOf(set *apps.CloneSet) (map[string]any, error) {
	return revision.Decode(set.Spec.Template.Raw())
}

func revisionData(object client.Object) []byte {
	if r, ok := object.(*appsv1.ControllerRevision); ok {
		return r.Data.Raw
	}
	return nil
}
