// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// factors are values that have to work in every combination. The first level of each is the default; values that the
// chart refuses beside others are not among them.
var factors = [][]string{
	{"{}", "{runtime: crio}", "{runtime: k3s}", "{runtime: crio, openshift: {enabled: true}}",
		"{runtime: crio, configureNRI: {enabled: true}}"},
	{"{}", "{configMap: mine}", "{configMap: mine, privileges: adjust}", "{repair: {enabled: true}}", "{privileges: adjust, config: {ipcLock: false}}",
		"{hostPID: true}", "{privileges: adjust, config: {ipcLock: false}, repair: {enabled: true, dryRun: true}}"},
	{"{}", "{validator: {enabled: true}}"},
	{"{}", "{doctor: {enabled: true}}", "{doctor: {ignore: [{check: a, reason: b}]}}"},
	{"{}", "{global: {imageRegistry: r.example.com, imagePullSecrets: [a]}}"},
	{"{}", "{image: {repository: localhost/x, tag: v1}, imagePullSecrets: [{name: b}]}"},
	{"{}", "{nameOverride: plugin}", "{fullnameOverride: mine}"},
	{"{}", "{commonLabels: {team: hpc, app.kubernetes.io/instance: x, app.kubernetes.io/version: x, helm.sh/chart: x}}"},
	{"{}", "{podLabels: {team: a, app.kubernetes.io/name: x, app.kubernetes.io/part-of: x}}"},
	{"{}", "{podAnnotations: {kubectl.kubernetes.io/default-container: x, openshift.io/required-scc: x}}"},
	{"{}", "{nodeSelector: {kubernetes.io/os: linux, pool: a}}"},
	{"{}", "{affinity: {podAffinity: {}}}", "{affinity: {nodeAffinity: {}, podAntiAffinity: {}}}",
		"{nodeFeatureDiscovery: {enabled: true}}"},
	{"{}", "{tolerations: [], priorityClassName: ''}"},
	{"{}", "{minReadySeconds: 0}"},
	{"{}", "{updateStrategy: {type: OnDelete}}", "{updateStrategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 10%}}}"},
	{"{}", "{extraEnv: [{name: A, value: b}], extraArgs: [--log-level=debug], index: 10}"},
	{"{}", "{extraContainers: [{name: c, image: d}], extraVolumes: [{name: e, emptyDir: {}}], extraVolumeMounts: [{name: e, mountPath: /e}]}"},
	{"{}", "{namespaceOverride: fabric}"},
	{"{}", "{extraObjects: [{apiVersion: v1, kind: ServiceAccount, metadata: {name: second}}]}"},
	{"{}", "{seLinuxType: spc_t, kubeletRoot: /data/kubelet, resources: {limits: {cpu: 1}}}"},
	{"{}", "{podMonitor: {enabled: true, labels: {team: b, app.kubernetes.io/name: x}, annotations: {a: b}}}"},
	{"{}", "{alerts: {enabled: true, labels: {team: b}}}", "{alerts: {enabled: true, registeredNothing: true, disabled: [NRIRDMARefusals]}}"},
	{"{}", "{dashboard: {enabled: true, labels: {team: b}}}"},
	{"{networkPolicy: {namespaces: [monitoring]}}", "{networkPolicy: {enabled: false}}", "{networkPolicy: {ingress: [{}]}}"},
	{"{}", "{execRole: {enabled: true}}"},
	{"{}", "{admission: {require: {enabled: true}}, runtimeClass: {enabled: true}}"},
	{"{}", "{admission: {forbid: {enabled: true}}}"},
}

// pair is two levels of two factors.
type pair struct{ a, levelOfA, b, levelOfB int }

func (p pair) in(row []int) bool { return row[p.a] == p.levelOfA && row[p.b] == p.levelOfB }

// pairs returns combinations in which any two levels of two factors meet: the level of each factor.
func pairs() (all [][]int) {
	var missing []pair
	for b := range factors {
		for a := range b {
			for i := range factors[a] {
				for j := range factors[b] {
					missing = append(missing, pair{a, i, b, j})
				}
			}
		}
	}
	for len(missing) > 0 {
		first := missing[0]
		row := slices.Repeat([]int{-1}, len(factors))
		row[first.a], row[first.b] = first.levelOfA, first.levelOfB
		for factor, level := range row {
			if level < 0 {
				row[factor] = mostMissing(missing, row, factor)
			}
		}
		missing = slices.DeleteFunc(missing, func(p pair) bool { return p.in(row) })
		all = append(all, row)
	}
	return all
}

// mostMissing returns the level of a factor with which a row has most of the pairs that are missing.
func mostMissing(missing []pair, row []int, factor int) (best int) {
	most := -1
	for level := range factors[factor] {
		row[factor] = level
		meets := 0
		for _, p := range missing {
			if (p.a == factor || p.b == factor) && p.in(row) {
				meets++
			}
		}
		if meets > most {
			most, best = meets, level
		}
	}
	return best
}

// TestPairs: whatever two values a user sets together, helm lint --strict takes them, kustomize reads what is rendered,
// with no key twice, and every manifest has only fields that Kubernetes knows.
func TestPairs(t *testing.T) {
	all := pairs()
	t.Logf("%d combinations", len(all))
	for i, row := range all {
		values, set := Values{}, ""
		for factor, level := range row {
			text := factors[factor][level]
			if level > 0 {
				set += text + " "
			}
			values = util.CoalesceTables(parse(t, text), values)
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			lintStrictly(t, set, values)
			rendered, err := Render(load(t), "a-release", values)
			if err != nil {
				t.Fatalf("%s: %v", set, err)
			}
			text := Objects(rendered)
			checkFields(t, text)
			files := filesys.MakeFsInMemory()
			for name, content := range map[string]string{"all.yaml": text, "kustomization.yaml": "resources: [all.yaml]\n"} {
				if err := files.WriteFile("/in/"+name, []byte(content)); err != nil {
					t.Fatal(err)
				}
			}
			objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, "/in")
			if err != nil {
				t.Fatalf("%s: %v", set, err)
			}
			if want := strings.Count("\n"+text, "\napiVersion: "); objects.Size() != want {
				t.Errorf("%s: kustomize reads %d objects of %d", set, objects.Size(), want)
			}
		})
	}
}

// TestChart_asDependency: as a dependency, the chart is on or off by its condition, and has its parent's registry and secrets.
func TestChart_asDependency(t *testing.T) {
	for values, want := range map[string]string{
		"{nri-rdma: {enabled: false}}": "",
		"{}":                           "image: ghcr.io/rdma-spec/rdma-spec:devel\n",
		"{nri-rdma: {enabled: true, commonLabels: {a: b}}, global: {imageRegistry: r.example.com, imagePullSecrets: [x], " +
			"storageClass: y}}": "image: r.example.com/rdma-spec/rdma-spec:devel\n",
	} {
		c := load(t)
		parent := &chart.Chart{Metadata: &chart.Metadata{
			APIVersion: "v2", Name: "platform", Version: "1.0.0",
			Dependencies: []*chart.Dependency{{Name: "nri-rdma", Version: c.Metadata.Version, Condition: "nri-rdma.enabled"}},
		}}
		parent.AddDependency(c)
		rendered, err := Render(parent, "prod", parse(t, values))
		if err != nil {
			t.Fatalf("%s: %v", values, err)
		}
		text := rendered["daemonset.yaml"]
		if want == "" && len(rendered) > 0 || !strings.Contains(text, want) ||
			want != "" && !strings.Contains(text, "\n  name: prod-nri-rdma\n") {
			t.Errorf("with %s there is no %q:\n%s", values, want, text)
		}
		if strings.Contains(values, "[x]") && !strings.Contains(text, "imagePullSecrets:\n        - name: x\n") {
			t.Errorf("with %s the pods do not have the secret:\n%s", values, text)
		}
		if len(rendered) > 0 {
			checkFields(t, Objects(rendered))
		}
	}
}

// TestChart_twoReleases: two releases in one namespace, of one chart or twice a dependency, share no object, no pod, and no
// directory where the plugin of one could take over from the other's.
func TestChart_twoReleases(t *testing.T) {
	const all = "{execRole: {enabled: true}, networkPolicy: {namespaces: [monitoring]}, podMonitor: {enabled: true}, alerts: {enabled: true}, dashboard: {enabled: true}, openshift: {enabled: true}, " +
		"runtime: crio, doctor: {enabled: true, ignore: [{check: a, reason: b}]}}"
	named, sets := map[string]bool{}, []appsv1.DaemonSet{}
	for _, twin := range []struct{ chart, release string }{{"nri-rdma", "crio"}, {"nri-rdma", "other"}, {"plugin", "crio"}} {
		c := load(t)
		c.Metadata.Name = twin.chart // as Helm does for an alias
		rendered, err := Render(c, twin.release, parse(t, all))
		if err != nil {
			t.Fatal(err)
		}
		for file := range maps.Keys(rendered) {
			var object struct {
				Kind     string
				Metadata struct{ Name string }
			}
			if !strings.HasSuffix(file, ".yaml") {
				continue
			}
			if err := yaml.Unmarshal([]byte(rendered[file]), &object); err != nil {
				t.Fatal(err)
			}
			name := object.Kind + " " + object.Metadata.Name
			if named[name] {
				t.Errorf("two releases have the %s", name)
			}
			named[name] = true
		}
		sets = append(sets, daemonSet(t, rendered))
	}
	if len(named) < 3*9 {
		t.Errorf("only the objects %v", named)
	}
	dirs := map[string]int{}
	for i, set := range sets {
		for j, other := range sets {
			selects := labels.SelectorFromSet(set.Spec.Selector.MatchLabels).Matches(labels.Set(other.Spec.Template.Labels))
			if selects != (i == j) {
				t.Errorf("the DaemonSet %s selects pods of %s: %t", set.Name, other.Name, selects)
			}
		}
		for _, volume := range set.Spec.Template.Spec.Volumes {
			if volume.Name == "handover" {
				dirs[volume.HostPath.Path]++
			}
		}
	}
	if len(dirs) != len(sets) {
		t.Errorf("three releases hand over in %v", dirs)
	}
}

// TestTestPod: the pod of helm test runs where the DaemonSet's pods are, and is none of them.
func TestTestPod(t *testing.T) {
	text := render(t, "{podLabels: {a: b}, commonLabels: {c: d}}")[testPod]
	if strings.Contains(text, "app.kubernetes.io/name: nri-rdma\n    app") || !strings.Contains(text, "helm.sh/hook: test\n") ||
		!strings.Contains(text, "topologyKey: kubernetes.io/hostname") || !strings.Contains(text, "- status\n") {
		t.Errorf("the pod of helm test:\n%s", text)
	}
	if text := render(t, "{privileges: adjust, config: {ipcLock: false}}")[testPod]; text != "" {
		t.Errorf("without the runtime's socket, rdma-spec status cannot know:\n%s", text)
	}
}
