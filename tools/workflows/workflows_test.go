// SPDX-License-Identifier: Apache-2.0

// Package workflows tests what continuous integration and releases may take from other projects and
// people.
package workflows

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/checktest"
)

const root = "../../"

type workflow struct {
	Permissions map[string]string
	Jobs        map[string]job
}

type job struct {
	Environment string
	Needs       []string
	Permissions map[string]string
	Steps       []step
}

type step struct {
	Uses, Run string
	With      map[string]any
}

// reports are what jobs may write that nobody runs: findings of scanners, and an identity that alone changes nothing.
var reports = []string{"security-events", "id-token"}

// publishes reports whether a job may write artifacts that others run.
func (j job) publishes() bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(j.Permissions)), func(to string) bool {
		return j.Permissions[to] == "write" && !slices.Contains(reports, to)
	})
}

// isHeld reports whether the job waits for the check, and for the approval of a release.
func (j job) isHeld() bool { return slices.Contains(j.Needs, "checked") && j.Environment == "release" }

// trusts names what a step of such a job takes from others, or leaves to them; "" if nothing.
func (s step) trusts() string {
	action, _, _ := strings.Cut(s.Uses, "@")
	switch {
	case strings.Contains(action, "cache"):
		return "restores a cache"
	case strings.HasPrefix(action, "actions/setup-") && s.With["cache"] != false:
		return "restores a cache without cache: false"
	case action == "actions/checkout" && s.With["persist-credentials"] != false:
		return "leaves the job's token to what it builds: set persist-credentials: false"
	}
	return ""
}

// all returns the workflows by their paths.
func all(t *testing.T) map[string]workflow {
	t.Helper()
	files := checktest.Must(filepath.Glob(root + ".github/workflows/*"))(t)
	found := map[string]workflow{}
	for _, file := range files {
		var w workflow
		checktest.NoError(t, yaml.Unmarshal(checktest.Must(os.ReadFile(file))(t), &w))
		found[strings.TrimPrefix(file, root)] = w
	}
	if len(found) < 2 {
		t.Fatalf("there are only the workflows %v", found)
	}
	return found
}

// pinned matches an action whose content cannot change.
var pinned = regexp.MustCompile(`^(\./.*|[^@]+@[0-9a-f]{40})$`)

// TestActionsArePinned: an action changes only with a reviewed change here, not when somebody moves a
// tag elsewhere; and texts from outside do not become commands.
func TestActionsArePinned(t *testing.T) {
	for file, w := range all(t) {
		if len(w.Permissions) != 1 || w.Permissions["contents"] != "read" {
			t.Errorf("%s: jobs that say nothing may %v", file, w.Permissions)
		}
		for name, j := range w.Jobs {
			for _, s := range j.Steps {
				if s.Uses != "" && !pinned.MatchString(s.Uses) {
					t.Errorf("%s: job %s uses %s: name a commit", file, name, s.Uses)
				}
				if strings.Contains(s.Run, "${{") {
					t.Errorf("%s: job %s puts an expression into a command: use env: %s", file, name, s.Run)
				}
			}
		}
	}
}

// TestReleasesTrustNoCache is an attack: somebody whose code CI runs writes a cache, from which a
// release would be built. Releases are built only from a checkout, after a check of its commit.
func TestReleasesTrustNoCache(t *testing.T) {
	published := 0
	for file, w := range all(t) {
		for name, j := range w.Jobs {
			if !j.publishes() {
				continue
			}
			published++
			if w.Jobs["checked"].publishes() || !j.isHeld() {
				t.Errorf("%s: job %s publishes without the job checked before it, or outside of the environment release", file, name)
			}
			for _, s := range j.Steps {
				if wrong := s.trusts(); wrong != "" {
					t.Errorf("%s: job %s: %s %s", file, name, s.Uses, wrong)
				}
			}
		}
		if checked, found := w.Jobs["checked"]; found && !slices.ContainsFunc(checked.Steps, func(s step) bool { return strings.Contains(s.Run, "tools/releasable") }) {
			t.Errorf("%s: the job checked does not run tools/releasable", file)
		}
	}
	if published == 0 {
		t.Error("nothing is published")
	}
}

// floating matches versions that somebody else can move, after the module or image of a tool.
var floating = regexp.MustCompile(`[\w./-]+(@latest|@main|@master|@HEAD|:latest)\b`)

// TestNothingFloats: CI, releases and make run the versions that a commit names.
func TestNothingFloats(t *testing.T) {
	var files []string
	for _, pattern := range []string{"Makefile", ".ci/*", ".github/workflows/*", "tools/*", "tools/*/*.go"} {
		files = append(files, checktest.Must(filepath.Glob(root+pattern))(t)...)
	}
	for _, file := range files {
		if info := checktest.Must(os.Stat(file))(t); info.IsDir() || strings.HasSuffix(file, "_test.go") {
			continue
		}
		if found := floating.FindString(string(checktest.Must(os.ReadFile(file))(t))); found != "" {
			t.Errorf("%s names %s: name a version", strings.TrimPrefix(file, root), found)
		}
	}
}

// TestReleasable runs tools/releasable on three commits: one of main, one of another branch, and one of main on
// which CI has not passed. A script that answers as GitHub does stands in for gh.
func TestReleasable(t *testing.T) {
	script := checktest.Must(filepath.Abs(root + "tools/releasable"))(t)
	for name, test := range map[string]struct {
		checkout, passed string
		may              bool
	}{
		"a commit of main": {"main", "1", true}, "an older one": {"main~1", "2", true},
		"a commit beside it": {"other", "1", false}, "CI failed": {"main", "0", false}, "no answer": {"main", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			run := func(command string) error {
				c := exec.CommandContext(t.Context(), "bash", "-euc", command)
				c.Dir = dir
				c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "GITHUB_REPOSITORY=o/r", "GIT_CONFIG_GLOBAL=/dev/null", "PASSED="+test.passed)
				return c.Run()
			}
			checktest.NoError(t, run(`git init -q -b main . && git config user.name a && git config user.email a@b
				for n in 1 2; do git commit -q --allow-empty -m $n; done
				git update-ref refs/remotes/origin/main HEAD
				git checkout -q -b other && git commit -q --allow-empty -m 3 && git checkout -q `+test.checkout+`
				echo 'case $2 in *ci.yml*head_sha='$(git rev-parse HEAD)'*branch=main*status=success*) echo "$PASSED";; *) exit 1;; esac' >gh
				chmod +x gh`))
			if err := run(script); (err == nil) != test.may {
				t.Errorf("it may be released: %v", err)
			}
		})
	}
}

// TestTagsAreProtected: the rulesets to import cover the tags that a workflow releases.
func TestTagsAreProtected(t *testing.T) {
	rules := map[string]int{} // and how many users may break them
	for _, file := range checktest.Must(filepath.Glob(root + ".github/rulesets/*.json"))(t) {
		var set struct {
			Target, Enforcement string
			Conditions          struct {
				Refs struct{ Include, Exclude []string } `json:"ref_name"`
			}
			Rules  []struct{ Type string }
			Bypass []struct{ ActorID int } `json:"bypass_actors"`
		}
		checktest.NoError(t, yaml.Unmarshal(checktest.Must(os.ReadFile(file))(t), &set))
		if set.Target != "tag" || set.Enforcement != "active" || !slices.Equal(set.Conditions.Refs.Include, []string{"refs/tags/v*"}) || len(set.Conditions.Refs.Exclude) > 0 {
			t.Errorf("%s does not protect what release.yml releases: %+v", file, set)
		}
		for _, rule := range set.Rules {
			rules[rule.Type] = len(set.Bypass)
		}
	}
	checktest.Same(t, "the rules, and who may break them", map[string]int{"creation": 1, "update": 0, "deletion": 0, "non_fast_forward": 0}, rules)
}

// TestWorkflowsAreValid: actionlint finds no fault in the workflows, nor shellcheck in their steps if it is there.
func TestWorkflowsAreValid(t *testing.T) {
	command := exec.CommandContext(t.Context(), "go", "tool", "-modfile=tools/actionlint/go.mod", "actionlint", "-no-color")
	command.Dir, command.Env = root, append(os.Environ(), "GOWORK=off")
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("actionlint: %v\n%s", err, out)
	}
}

// TestOSSFuzzBuildsAllTargets runs build.sh with a stand-in for OSS-Fuzz's compiler, which notes what it is given.
func TestOSSFuzzBuildsAllTargets(t *testing.T) {
	bin := t.TempDir()
	compiler := "#!/bin/sh\necho \"$1 $2 $3\" >>" + bin + "/targets\n"
	checktest.NoError(t, os.WriteFile(filepath.Join(bin, "compile_native_go_fuzzer"), []byte(compiler), 0o755)) //nolint:gosec // a program
	command := exec.CommandContext(t.Context(), "tools/oss-fuzz/build.sh")
	command.Dir, command.Env = root, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build.sh: %v\n%s", err, out)
	}
	built, names := strings.Fields(string(checktest.Must(os.ReadFile(filepath.Join(bin, "targets")))(t))), map[string]bool{}
	for target := range slices.Chunk(built, 3) {
		if !strings.HasPrefix(target[0], "github.com/usher-dev/usher/internal/") || !strings.HasPrefix(target[1], "Fuzz") {
			t.Errorf("build.sh builds %v", target)
		}
		names[target[2]] = true
	}
	if len(names) < 19 || len(names)*3 != len(built) {
		t.Errorf("build.sh builds %d targets under %d names", len(built)/3, len(names))
	}
}

// TestArtifactHubNamesTheImage: the chart's annotation names the image that the chart installs.
func TestArtifactHubNamesTheImage(t *testing.T) {
	var chart struct {
		AppVersion  string
		Annotations map[string]string
	}
	checktest.NoError(t, yaml.Unmarshal(checktest.Must(os.ReadFile(root+"charts/usher/Chart.yaml"))(t), &chart))
	var images []struct{ Image string }
	checktest.NoError(t, yaml.Unmarshal([]byte(chart.Annotations["artifacthub.io/images"]), &images))
	if want := "ghcr.io/usher-dev/usher:" + chart.AppVersion; len(images) != 1 || images[0].Image != want {
		t.Errorf("artifacthub.io/images names %v, want %s", images, want)
	}
}

// TestSecurityInsights: what scanners read has the fields that version 2.0.0 of the format asks for, and names files
// that exist.
func TestSecurityInsights(t *testing.T) {
	text := string(checktest.Must(os.ReadFile(root + "SECURITY-INSIGHTS.yml"))(t))
	var insights map[string]map[string]any
	checktest.NoError(t, yaml.UnmarshalStrict([]byte(text), &insights))
	for object, fields := range map[string][]string{
		"header":     {"schema-version", "last-updated", "last-reviewed", "url"},
		"project":    {"name", "administrators", "repositories", "vulnerability-reporting"},
		"repository": {"url", "status", "accepts-change-request", "accepts-automated-change-request", "core-team", "license", "security"},
	} {
		for _, field := range fields {
			if insights[object][field] == nil {
				t.Errorf("%s.%s is missing", object, field)
			}
		}
	}
	for _, link := range regexp.MustCompile(`/blob/main/(\S+)`).FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(root + link[1]); err != nil {
			t.Error(err)
		}
	}
}
