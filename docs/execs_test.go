// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/testing/pages"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// theirs are the pods that a reader brings.
var theirs = []string{"my-pod"}

// exampleOf is a pod of an example that commands run in, and the file that has it.
type exampleOf struct {
	file string
	spec corev1.PodSpec
}

// podsOfExamples returns the pods of deploy/examples, by the names that kubectl exec takes.
func podsOfExamples(t *testing.T) map[string]exampleOf {
	t.Helper()
	files, err := filepath.Glob(repository.Path(t, "deploy/examples/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	pods := map[string]exampleOf{}
	for _, path := range files {
		file := "deploy/examples/" + filepath.Base(path)
		for _, document := range strings.Split(repository.Read(t, file), "\n---\n") {
			var kind struct{ Kind string }
			if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
				t.Fatal(err)
			}
			var pod corev1.Pod
			var set appsv1.StatefulSet
			switch kind.Kind {
			case "Pod":
				err = yaml.Unmarshal([]byte(document), &pod)
				pods[pod.Name] = exampleOf{file, pod.Spec}
			case "StatefulSet":
				err = yaml.Unmarshal([]byte(document), &set)
				for i := range *set.Spec.Replicas {
					pods[fmt.Sprintf("%s-%d", set.Name, i)] = exampleOf{file, set.Spec.Template.Spec}
				}
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
		}
	}
	return pods
}

// brings are the packages that bring the programs of the pages.
var brings = map[string]string{"ib_write_bw": "perftest", "ip": "iproute2", "ibv_devices": "ibverbs-utils", "iperf3": "iperf3"}

var (
	execs  = regexp.MustCompile(`kubectl exec ([a-z0-9-]+) -- (.*)`)
	copies = regexp.MustCompile(`kubectl cp \S+ ([a-z0-9-]+):(\S+)`)
)

// execProblems returns what is wrong with the commands of a page that run in pods: the pod is not created, or waited for,
// above them, it ends, or it lacks a program.
func execProblems(page string, pods map[string]exampleOf) (all []string) {
	var above strings.Builder
	copied := map[string]bool{}
	for _, b := range pages.Blocks("", page) {
		for _, line := range b.Lines() {
			if found := copies.FindStringSubmatch(line); found != nil {
				copied[found[1]+found[2]] = true
			}
			found := execs.FindStringSubmatch(line)
			if found == nil || slices.Contains(theirs, found[1]) {
				fmt.Fprintln(&above, line)
				continue
			}
			name := found[1]
			pod, known := pods[name]
			if !known {
				all = append(all, "no example has the pod "+name)
				continue
			}
			container := pod.spec.Containers[0]
			command := strings.Join(container.Command, " ")
			if !strings.HasSuffix(command, "sleep infinity") {
				all = append(all, fmt.Sprintf("%s ends: %s", name, command))
			}
			if strings.Contains(command, "install") && container.ReadinessProbe == nil {
				all = append(all, name+" is ready before its programs are installed")
			}
			if !strings.Contains(above.String(), "kubectl apply -f "+pod.file) {
				all = append(all, fmt.Sprintf("nothing above applies %s, which has %s", pod.file, name))
			}
			if waits := regexp.MustCompile(`kubectl (wait .*pod/` + name + `|rollout status statefulset/` +
				strings.TrimRight(name, "-0123456789") + `)\b`); !waits.MatchString(above.String()) {
				all = append(all, "nothing above waits for "+name)
			}
			for _, program := range regexp.MustCompile(`[a-z0-9_/.-]+`).FindAllString(found[2], -1) {
				if needed := brings[program]; needed != "" && !strings.Contains(command, needed) {
					all = append(all, fmt.Sprintf("%s has no %s", name, program))
				}
				if strings.HasPrefix(program, "/tmp/") && !copied[name+program] {
					all = append(all, fmt.Sprintf("nothing above copies %s to %s", program, name))
				}
			}
		}
	}
	return all
}

// TestPodsOfPagesStay checks that commands that a page runs in a pod of an example can work, in the page's order.
func TestPodsOfPagesStay(t *testing.T) {
	pods, used := podsOfExamples(t), map[string]bool{}
	for _, file := range texts(t) {
		page := repository.Read(t, file)
		for _, problem := range execProblems(page, pods) {
			t.Errorf("%s: %s", file, problem)
		}
		for _, found := range execs.FindAllStringSubmatch(page, -1) {
			used[found[1]] = true
		}
	}
	if len(used) < 5 {
		t.Errorf("commands run in %q, want more", slices.Collect(maps.Keys(used)))
	}
}
