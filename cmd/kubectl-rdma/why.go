// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/internal/explain"
	"github.com/rdma-spec/rdma-spec/cmd/internal/why"
	"github.com/rdma-spec/rdma-spec/cmd/internal/why/command"
)

// mostLog bounds what is read of a container's log, in bytes. A kubelet answers with one file of it, of 10 MiB by
// default.
const mostLog = 16 << 20

// why is why of a pod, by the rights of its author.
func (o *options) why() *cobra.Command {
	q := &question{options: o}
	return command.New(command.Machine{
		Program: "kubectl rdma",
		AddFlags: func(f *pflag.FlagSet) {
			f.StringVarP(&q.container, "container", "c", "", "read only the log of the container with this `NAME`")
			f.BoolVarP(&q.previous, "previous", "p", false, "read the logs of the containers' previous runs")
			f.StringVar(&q.config, "config", "", "explain the spec with this configuration `FILE` instead of the "+
				"built-in defaults")
			o.connectionFlags(f, false)
			namespace := f.Lookup("namespace")
			namespace.DefValue = ""
			namespace.Usage = "the `NAMESPACE` of the pod; by default, the namespace in the kubeconfig"
		},
		Pod: q.pod,
	})
}

// question is a question about a pod: its flags.
type question struct {
	*options
	container, config string
	previous          bool
}

// pod reads what is known of a pod.
func (q *question) pod(cmd *cobra.Command, named string) (command.Pod, error) {
	c, err := q.connect(cmd.Context())
	if err != nil {
		return command.Pod{}, err
	}
	namespace, _, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(q.rules, &q.overrides).Namespace()
	if err != nil {
		return command.Pod{}, err
	}
	if cmd.Flags().Changed("namespace") || cmd.Root().Flags().Changed("namespace") { // behind why, or before it
		namespace = q.namespace
	}
	pod, err := c.podNamed(namespace, strings.TrimPrefix(named, "pod/"))
	if err != nil {
		return command.Pod{}, err
	}
	if all := containersOf(pod); q.container != "" && !slices.Contains(all, q.container) {
		return command.Pod{}, cli.Usage(fmt.Errorf("pod %s has no container %s: its containers are %s", pod.Name, q.container,
			strings.Join(all, ", ")))
	}
	said := command.Pod{Pod: namespace + "/" + pod.Name, Node: pod.Spec.NodeName, State: stateOf(pod)}
	notRDMA, err := q.explain(pod, &said)
	if err != nil {
		return command.Pod{}, err
	}
	q.readLogs(c, pod, &said)
	readEvents(c, pod, &said)
	said.Wrong = wrongBySpec(pod, notRDMA, said)
	return said, nil
}

// podNamed gets a pod.
func (c *cluster) podNamed(namespace, name string) (pod corev1.Pod, err error) {
	err = c.core.Get().Namespace(namespace).Resource("pods").Name(name).Do(c).Into(&pod)
	switch {
	case apierrors.IsForbidden(err):
		err = fmt.Errorf("%w: the why command needs the verb get for pods and pods/log, and list for events, in namespace "+
			"%s", err,
			namespace)
	case apierrors.IsNotFound(err):
		err = fmt.Errorf("%w in namespace %s: set the pod's namespace with -n; to read a file, use -f; put a message in "+
			"quotes", err, namespace)
	}
	return pod, err
}

// containersOf returns the names of all containers of a pod, in the order in which they start.
func containersOf(pod corev1.Pod) (names []string) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		names = append(names, c.Name)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		names = append(names, c.Name)
	}
	return names
}

// stateOf returns the pod's phase, and what its containers do.
func stateOf(pod corev1.Pod) []string {
	all := []string{strings.Trim(fmt.Sprintf("%s: %s %s", pod.Status.Phase, pod.Status.Reason, pod.Status.Message), ": ")}
	for _, s := range statusesOf(pod) {
		now := "running"
		switch {
		case s.State.Waiting != nil:
			now = "waiting: " + s.State.Waiting.Reason
		case s.State.Terminated != nil:
			now = exitText(s.State.Terminated)
		case s.State.Running == nil:
			now = "not started"
		}
		if s.LastTerminationState.Terminated != nil {
			now += ", previously: " + exitText(s.LastTerminationState.Terminated)
		}
		if s.RestartCount > 0 {
			now += ", restarted " + cli.Counted(int(s.RestartCount), "time", "times") + "; --previous reads the previous log"
		}
		all = append(all, s.Name+": "+now)
	}
	return all
}

func statusesOf(pod corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses,
		pod.Status.EphemeralContainerStatuses)
}

// exitText is how a container ended: SIGSEGV is what a program without memlock may end by.
func exitText(by *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("exited with status %d", by.ExitCode)
	if by.ExitCode == 139 {
		text += " (SIGSEGV)"
	}
	if by.Reason != "" && by.Reason != "Error" && by.Reason != "Completed" {
		text += ", " + by.Reason
	}
	return text
}

// choosing are the variables that name HCAs. Only a node knows whether they are right.
var choosing = []string{"NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES"}

// explain adds what the spec alone tells, and returns which containers are no RDMA containers by it.
func (q *question) explain(pod corev1.Pod, to *command.Pod) ([]string, error) {
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"} // the API server leaves it out
	text, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	facts, err := explain.PodFacts(text, q.config)
	if err != nil {
		return nil, err
	}
	to.Spec = facts.Lines
	to.Configuration = facts.Configuration
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, v := range c.Env {
			if slices.Contains(choosing, v.Name) {
				to.Spec = append(to.Spec, fmt.Sprintf("%s: its environment has %s=%s", c.Name, v.Name, v.Value))
			}
		}
	}
	return facts.NotRDMA, nil
}

// wrongBySpec reports of a check whether the spec, beside what the texts say, shows that it finds a fault.
func wrongBySpec(pod corev1.Pod, notRDMA []string, said command.Pod) func(check string) bool {
	wrong := map[string]bool{"container-hca": len(notRDMA) == len(containersOf(pod))}
	for _, v := range pod.Spec.Volumes {
		if v.HostPath != nil && strings.HasPrefix(v.HostPath.Path, "/dev/infiniband") {
			wrong["container-hostpath"] = true
		}
	}
	for _, text := range said.Texts {
		for _, root := range text.Roots {
			wrong["container-environment"] = wrong["container-environment"] || namesOne(pod, root.Text)
		}
	}
	return func(check string) bool { return wrong[check] }
}

// namesOne reports whether a line names an HCA that a variable of the pod names: the program looked for it in vain.
func namesOne(pod corev1.Pod, line string) bool {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, v := range c.Env {
			for name := range strings.FieldsFuncSeq(v.Value, func(r rune) bool { return strings.ContainsRune("=^,:", r) }) {
				if slices.Contains(choosing, v.Name) && len(name) > 3 && strings.Contains(line, name) {
					return true
				}
			}
		}
	}
	return false
}

// readLogs adds the logs of the pod's containers.
func (q *question) readLogs(c *cluster, pod corev1.Pod, to *command.Pod) {
	most := int64(mostLog)
	for _, name := range containersOf(pod) {
		if q.container != "" && name != q.container {
			continue
		}
		about := "log of " + name
		if q.previous {
			about = "previous " + about
		}
		which := &corev1.PodLogOptions{Container: name, Previous: q.previous, LimitBytes: &most}
		log, err := c.core.Get().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("log").
			VersionedParams(which, c.parameters).Stream(c)
		switch {
		case apierrors.IsBadRequest(err): // there is none, as before the container starts: the state says why
			to.State = append(to.State, name+" has no "+strings.TrimSuffix(about, " of "+name))
			continue
		case err != nil:
			to.Unread = append(to.Unread, fmt.Sprintf("%s: %v", about, err))
			continue
		}
		counted := &counter{Reader: log}
		report, err := why.Read(counted)
		if err = errors.Join(err, log.Close()); err != nil {
			to.Unread = append(to.Unread, fmt.Sprintf("%s: %v", about, err))
			continue
		}
		to.Texts = append(to.Texts, command.Text{Name: about, Cut: counted.read >= mostLog, Report: report})
	}
}

// counter counts what is read.
type counter struct {
	io.Reader
	read int64
}

// Read implements io.Reader.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.read += int64(n)
	return n, err
}

// readEvents adds what the API server says of the pod: its events, the oldest first, and why its containers wait.
func readEvents(c *cluster, pod corev1.Pod, to *command.Pod) {
	which := metav1.ListOptions{FieldSelector: fields.Set{"involvedObject.kind": "Pod", "involvedObject.name": pod.Name,
		"involvedObject.uid": string(pod.UID)}.String()}
	var events []*corev1.Event
	err := list(c, "events", pod.Namespace, which, func(e *corev1.Event) { events = append(events, e) })
	if err != nil {
		to.Unread = append(to.Unread, fmt.Sprintf("its events: %v", err))
	}
	slices.SortStableFunc(events, func(a, b *corev1.Event) int { return lastSeen(a).Compare(lastSeen(b).Time) })
	var messages []string
	for _, e := range events {
		messages = append(messages, e.Message)
	}
	for _, s := range statusesOf(pod) {
		if s.State.Waiting != nil {
			messages = append(messages, s.State.Waiting.Message)
		}
		for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if t != nil {
				messages = append(messages, t.Message)
			}
		}
	}
	messages = slices.DeleteFunc(messages, func(m string) bool { return m == "" })
	if len(messages) == 0 {
		return
	}
	report, err := why.Read(strings.NewReader(strings.Join(messages, "\n")))
	if err != nil { // a text can be read
		to.Unread = append(to.Unread, fmt.Sprintf("its events: %v", err))
		return
	}
	to.Texts = append(to.Texts, command.Text{Name: "events and states", Report: report})
}

// lastSeen is when an event was seen last, in either of the two ways in which the API has it.
func lastSeen(e *corev1.Event) *metav1.Time {
	last := e.LastTimestamp
	if last.IsZero() {
		last = metav1.NewTime(cmp.Or(e.EventTime, metav1.NewMicroTime(e.CreationTimestamp.Time)).Time)
	}
	return &last
}
