// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/cloneset/write"
	"github.com/usher-dev/usher/internal/forecast"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/view"
)

// planOptions are the flags that describe a change.
type planOptions struct {
	filename, partition string
	images              []string
	replicas            int32
}

// changesCode is the exit code of a plan that is not refused and changes something.
const changesCode = 2

func planCommand(s *session) *cobra.Command {
	var o planOptions
	command := command("plan", cobra.MaximumNArgs(2), s.completesTarget(onlyCloneSets), func(ctx context.Context, args []string) error {
		return s.plan(ctx, args, &o)
	})
	flags := command.Flags()
	flags.StringVarP(&o.filename, "filename", "f", "", "`file` with CloneSets as kubectl apply would get it; - reads standard input")
	flags.StringArrayVar(&o.images, "image", nil, "`container=image` to change to; may be repeated")
	flags.Int32Var(&o.replicas, "replicas", -1, "`number` of Pods to scale to")
	flags.StringVar(&o.partition, "partition", "", "`count` or percentage of Pods that keep the old revision")
	completesFlag(command, "image", s.ofCloneSet(images))
	completesFlag(command, "partition", percentages)
	return s.outputs(command, "json", "yaml")
}

// proposal is a change of a CloneSet that the API server accepts.
type proposal struct {
	// live is the set as it is, nil if there is none; to is the set after the change.
	live, to *apps.CloneSet
}

// propose asks the API server in a dry run for a CloneSet after a patch.
func (s *session) propose(ctx context.Context, live *apps.CloneSet, patch client.Patch, options ...client.PatchOption) (proposal, error) {
	to := live.DeepCopy()
	if err := s.client.Patch(ctx, to, patch, append(options, client.DryRunAll)...); err != nil {
		return proposal{}, refused(live.Name, err)
	}
	return proposal{live, to}, nil
}

func (s *session) plan(ctx context.Context, args []string, o *planOptions) error {
	proposals, err := s.proposals(ctx, args, o)
	if err != nil {
		return err
	}
	var all []forecast.Forecast
	for _, one := range proposals {
		f, err := s.foresee(ctx, one)
		if err != nil {
			return err
		}
		all = append(all, f)
	}
	var result any = all
	if len(all) == 1 {
		result = all[0]
	}
	err = s.page().answer(result, func(p *page) {
		for _, f := range all {
			p.forecast(&f)
		}
	})
	return cmp.Or(err, verdict(all))
}

// verdict returns the exit code of plans.
func verdict(all []forecast.Forecast) error {
	refused := func(f forecast.Forecast) bool { return f.Refused != "" }
	if at := slices.IndexFunc(all, refused); at >= 0 {
		return errors.New(all[at].Refused)
	}
	if slices.ContainsFunc(all, func(f forecast.Forecast) bool { return f.Changes }) {
		return exitCode(changesCode)
	}
	return nil
}

// check returns an error if the flags name no change, or two.
func (o *planOptions) check(args []string) error {
	flags := len(o.images) > 0 || o.replicas >= 0 || o.partition != ""
	switch {
	case o.filename != "" && (len(args) > 0 || flags):
		return errors.New("-f names the CloneSets and what they are to be: leave out clone/NAME, --image, --replicas and --partition")
	case o.filename != "":
	case len(args) == 0:
		return errors.New("name a CloneSet and a change, such as clone/web --image main=web:v2, or a file with -f")
	case !flags:
		return errors.New("say what is to change: --image, --replicas or --partition, or a file with -f")
	}
	return nil
}

// proposals returns the changes that the flags describe, as the API server would store them.
func (s *session) proposals(ctx context.Context, args []string, o *planOptions) ([]proposal, error) {
	if err := o.check(args); err != nil {
		return nil, err
	}
	if o.filename != "" {
		return s.fromFile(ctx, o.filename)
	}
	live, err := s.cloneSet(ctx, args)
	if err != nil {
		return nil, err
	}
	spec, err := o.spec(live)
	if err != nil {
		return nil, err
	}
	one, err := s.propose(ctx, live, patchOf(types.MergePatchType, map[string]any{"spec": spec}))
	return []proposal{one}, err
}

// refused returns the error of a change that the API server refuses.
func refused(name string, err error) error {
	return fmt.Errorf("clone/%s: the API server does not accept the change: %w", name, short(err))
}

// spec returns the fields of the spec that the flags change.
func (o *planOptions) spec(live *apps.CloneSet) (map[string]any, error) {
	spec := map[string]any{}
	if o.replicas >= 0 {
		spec["replicas"] = o.replicas
	}
	if o.partition != "" {
		value, err := partitionOf(o.partition)
		if err != nil {
			return nil, err
		}
		spec["updateStrategy"] = map[string]any{"partition": value}
	}
	if len(o.images) == 0 {
		return spec, nil
	}
	template, err := revision.Decode(live.Spec.Template.Raw())
	if err != nil {
		return nil, fmt.Errorf("clone/%s: %w", live.Name, err)
	}
	podSpec, _ := template["spec"].(map[string]any)
	for _, one := range o.images {
		if err := setImage(podSpec, one); err != nil {
			return nil, fmt.Errorf("clone/%s: %w", live.Name, err)
		}
	}
	changed := maps.Clone(podSpec)
	maps.DeleteFunc(changed, func(field string, _ any) bool { return !slices.Contains(containerFields, field) })
	spec["template"] = map[string]any{"spec": changed}
	return spec, nil
}

var containerFields = []string{"containers", "initContainers"}

// setImage gives a container of a template another image.
func setImage(podSpec map[string]any, change string) error {
	name, image, ok := strings.Cut(change, "=")
	if !ok || name == "" || image == "" {
		return fmt.Errorf("--image %q: write container=image", change)
	}
	var names []string
	for _, field := range containerFields {
		containers, _ := podSpec[field].([]any)
		for _, one := range containers {
			c, _ := one.(map[string]any)
			if c["name"] == name {
				c["image"] = image
				return nil
			}
			names = append(names, fmt.Sprint(c["name"]))
		}
	}
	return fmt.Errorf("--image %s: there is no container %q; there are %s", change, name, strings.Join(names, ", "))
}

// partitionOf reads a number of Pods or a percentage.
func partitionOf(text string) (any, error) {
	if number, err := strconv.Atoi(text); err == nil {
		return number, nil
	}
	if !strings.HasSuffix(text, "%") {
		return nil, fmt.Errorf("partition %q is neither a number of Pods nor a percentage such as 50%%", text)
	}
	return text, nil
}

// foresee plays a change on the live objects.
func (s *session) foresee(ctx context.Context, one proposal) (f forecast.Forecast, err error) {
	s.namespace = one.to.Namespace
	kinds := []schema.GroupVersionKind{kindRegistration, kindRevision, kindPod, kindQuota}
	if len(one.to.Spec.VolumeClaimTemplates) > 0 {
		kinds = append(kinds, kindClaim)
	}
	all, err := s.read(ctx, kinds...)
	if err != nil {
		return f, err
	}
	c := forecast.Change{Objects: view.Gather(time.Now(), one.to, all), To: one.to, Quotas: view.Each[*corev1.ResourceQuota](all)}
	c.Set = one.live
	c.Claims = slices.DeleteFunc(view.Each[*corev1.PersistentVolumeClaim](all), func(claim *corev1.PersistentVolumeClaim) bool {
		return !metav1.IsControlledBy(claim, one.to)
	})
	if c.Nodes, err = s.domains(ctx, one.to); err != nil {
		return f, err
	}
	if c.NoResize, err = s.noResize(); err != nil {
		return f, err
	}
	if err := s.tryPod(ctx, &c); err != nil {
		return f, err
	}
	if f, err = forecast.Of(c); err != nil || !f.Creates() {
		return f, err
	}
	if err := s.tryClaims(ctx, &c); err != nil || c.ClaimsRefused == "" && c.Exceeded == "" {
		return f, err
	}
	return forecast.Of(c)
}

// domains returns the labels of nodes; they are needed only if the template spreads Pods.
func (s *session) domains(ctx context.Context, set *apps.CloneSet) (map[string]map[string]string, error) {
	if !strings.Contains(string(set.Spec.Template.Raw()), `"topologySpreadConstraints"`) {
		return nil, nil
	}
	nodes, err := s.list(ctx, kindNode)
	if err != nil {
		return nil, failed(err, "list nodes, which the template's topologySpreadConstraints need")
	}
	out := map[string]map[string]string{}
	for _, node := range nodes {
		out[node.GetName()] = node.GetLabels()
	}
	return out, nil
}

// noResize reports whether the API server has no subresource pods/resize.
func (s *session) noResize() (bool, error) {
	resizes, err := discovery.IsResourceEnabled(s.discovery, corev1.SchemeGroupVersion.WithResource("pods/resize"))
	return !resizes, failed(err, "ask which subresources Pods have")
}

// tryPod asks the API server in a dry run whether it accepts a Pod of the new template, as
// the controller does before it touches the first Pod.
func (s *session) tryPod(ctx context.Context, c *forecast.Change) error {
	update, known, err := c.Update()
	if err != nil || known {
		return err
	}
	manifest := write.PodManifest(c.To, update, tried, c.Now)
	created, err := s.try(ctx, c, manifest, &c.Refused)
	if err != nil || !created {
		return err
	}
	c.Trial = &corev1.Pod{}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(manifest.Object, c.Trial)
}

// tryClaims asks the same about one claim of each claim template.
func (s *session) tryClaims(ctx context.Context, c *forecast.Change) error {
	for i := range c.To.Spec.VolumeClaimTemplates {
		manifest, err := write.ClaimManifest(c.To, &c.To.Spec.VolumeClaimTemplates[i], tried)
		if err != nil {
			return fmt.Errorf("clone/%s: spec.volumeClaimTemplates: %w", c.To.Name, err)
		}
		if _, err := s.try(ctx, c, manifest, &c.ClaimsRefused); err != nil || c.ClaimsRefused != "" {
			return err
		}
	}
	return nil
}

// tried is the instance id in dry runs.
const tried = "plan"

// try creates an object in a dry run, and reports whether the API server has completed it.
func (s *session) try(ctx context.Context, c *forecast.Change, object *unstructured.Unstructured, refused *string) (bool, error) {
	switch err := s.client.Create(ctx, object, client.DryRunAll); {
	case err == nil:
		return true, nil
	case apierrors.IsAlreadyExists(err), strings.Contains(err.Error(), "cannot create resource"):
		return false, nil // without the right to create it, nothing is found out
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
		c.Exceeded = err.Error() // matters only if there will be more of them
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err):
		*refused = err.Error()
	default:
		return false, fmt.Errorf("ask whether the templates' %ss are accepted: %w", object.GetKind(), err)
	}
	return false, nil
}

// forecast prints what a change does, for people.
func (p *page) forecast(f *forecast.Forecast) {
	p.line(bold, "CloneSet %s/%s  %s", f.Namespace, f.Name, headline(f))
	if len(f.Images) > 0 && (f.New || len(f.From) > 0) {
		p.line(plain, "Revision  %s  %s", arrow(strings.Join(f.From, ", "), f.To), strings.Join(f.Images, " "))
	}
	if f.ReplicasNow != f.Replicas {
		p.line(plain, "Replicas  %s", arrow(strconv.Itoa(f.ReplicasNow), strconv.Itoa(f.Replicas)))
	}
	p.fact("Because   %s", f.Because)
	if len(f.Waves) > 0 {
		p.line(plain, "Serve     at least %d of %d Pods, %d now", f.Lowest, f.Replicas, f.Available)
		p.line(plain, "Takes     %s", takes(f))
	}
	p.waves(f.Waves)
	p.asked(f.Hooks)
	for _, stop := range f.Stops {
		p.line(red, "Stops: %s", stop)
	}
}

func headline(f *forecast.Forecast) string {
	switch {
	case f.Refused != "":
		return "is refused"
	case f.New:
		return "would be created"
	case f.Changes && len(f.Waves) > 0:
		return "would change"
	case f.Changes:
		return "would change, and no Pod with it"
	case len(f.Waves) > 0:
		return "would not change; what its Pods still have to do:"
	}
	return "would not change"
}

func arrow(from, to string) string {
	if from == "" {
		return to
	}
	return from + " -> " + to
}

func takes(f *forecast.Forecast) string {
	if f.Takes == nil {
		return "unknown: " + f.Unknown
	}
	if len(f.Stops) > 0 && f.Takes.Duration == 0 {
		return "unknown: it stops before a Pod is done"
	}
	text := "about " + f.Takes.Duration.String()
	if len(f.Stops) > 0 {
		text += " until it stops"
	}
	return text + ", going by what the Pods took so far"
}

// doings are the changes of Pods, in the order in which a wave names them.
var doings = []struct {
	does forecast.Doing
	text string
}{
	{forecast.InPlace, "in place"}, {forecast.Recreate, "recreated"}, {forecast.Relabel, "relabelled"},
	{forecast.ScaleIn, "removed"}, {forecast.Replace, "replaced"}, {forecast.CleanUp, "cleaned up"},
}

// mostWaves is how many waves are listed one by one.
const mostWaves = 12

func (p *page) waves(waves []forecast.Wave) {
	rows := make([]row, 0, len(waves))
	for i := range waves {
		if i == mostWaves && len(waves) > mostWaves+1 {
			rows = append(rows, row{cells: []string{"...", after(&waves[len(waves)-1]), fmt.Sprintf("%d more waves like these, the last one then", len(waves)-i)}})
			break
		}
		rows = append(rows, row{cells: []string{strconv.Itoa(i + 1), after(&waves[i]), waveText(&waves[i])}})
	}
	p.section([]string{"WAVE", "AFTER", "PODS"}, rows)
}

func after(w *forecast.Wave) string {
	if w.After == nil {
		return "-"
	}
	return w.After.Duration.String()
}

// waveText names the Pods of a wave, grouped by what is done to them, in their order.
func waveText(w *forecast.Wave) string {
	var parts []string
	for _, d := range doings {
		if steps := list.Only(w.Pods, func(s forecast.Step) bool { return s.Does == d.does }); len(steps) > 0 {
			names := list.Map(steps, func(s forecast.Step) string { return s.Pod })
			parts = append(parts, d.text+": "+list.Some(names, forecast.MostNamed))
		}
	}
	if w.Created > 0 {
		parts = append(parts, fmt.Sprintf("%d new", w.Created))
	}
	return strings.Join(parts, "; ")
}

func (p *page) asked(hooks []forecast.Hook) {
	rows := make([]row, 0, len(hooks))
	for _, h := range hooks {
		r := row{cells: []string{h.Gate, h.Key, "somebody other than Usher"}}
		switch {
		case h.Unanswered:
			r.colour, r.cells[2] = red, "nobody: no Registration of the namespace answers it"
		case len(h.Registrations) > 0:
			r.cells[2] = answerers(h.Registrations, h.Registries)
		}
		rows = append(rows, r)
	}
	p.section([]string{"GATE", "HOOK", "ANSWERS"}, rows)
}
