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

// mostLog is the maximum number of bytes that are read from a container's log. The kubelet returns one log file, of 10
// MiB by default.
const mostLog = 16 << 20

// why returns the why command for a pod, which needs only the permissions of a pod author.
func (o *options) why() *cobra.Command {
	q := &question{options: o}
	return command.New(command.Machine{
		Program: "kubectl rdma",
		AddFlags: func(f *pflag.FlagSet) {
			f.StringVarP(&q.container, "container", "c", "", "read only the log of the container with this `NAME`")
			f.BoolVarP(&q.previous, "previous", "p", false, "read the logs of the containers' previous runs")
			f.StringVar(&q.config, "config", "", "explain the pod's spec with this configuration `FILE` instead of the "+
				"built-in defaults")
			o.connectionFlags(f, false)
			namespace := f.Lookup("namespace")
			namespace.DefValue = ""
			namespace.Usage = "the `NAMESPACE` of the pod; by default, the namespace in the kubeconfig"
		},
		Pod: q.pod,
	})
}

// question contains the flags of the why command.
type question struct {
	*options
	container, config string
	previous          bool
}

// pod reads the information about a pod.
func (q *question) pod(cmd *cobra.Command, named string) (command.Pod, error) {
	c, err := q.connect(cmd.Context())
	if err != nil {
		return command.Pod{}, err
	}
	namespace, _, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(q.rules, &q.overrides).Namespace()
	if err != nil {
		return command.Pod{}, err
	}
	if cmd.Flags().Changed("namespace") || cmd.Root().Flags().Changed("namespace") { // the flag can precede or follow why
		namespace = q.namespace
	}
	pod, err := c.podNamed(namespace, strings.TrimPrefix(named, "pod/"))
	if err != nil {
		return command.Pod{}, err
	}
	if all := containersOf(pod); q.container != "" && !slices.Contains(all, q.container) {
		return command.Pod{}, cli.Usage(fmt.Errorf("pod %s has no container %s: the pod's containers are %s", pod.Name,
			q.container, strings.Join(all, ", ")))
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
		err = fmt.Errorf("%w: the why command needs permission to get pods and pods/log, and to list events, in "+
			"namespace %s", err, namespace)
	case apierrors.IsNotFound(err):
		err = fmt.Errorf("%w in namespace %s: use -n for another namespace or -f for a file, or put quotes "+
			"around a message", err, namespace)
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

// stateOf returns the phase of the pod and the states of its containers.
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
			now += ", restarted " + cli.Counted(int(s.RestartCount), "time", "times") +
				" (to read the previous log, use --previous)"
		}
		all = append(all, s.Name+": "+now)
	}
	return all
}

func statusesOf(pod corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses,
		pod.Status.EphemeralContainerStatuses)
}

// exitText describes the exit of a container. A program with a low memlock can exit with SIGSEGV.
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

// choosing lists the variables that select HCAs. Only a node knows whether their values are valid.
var choosing = []string{"NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES"}

// explain adds the facts from the pod's spec, and returns the containers that are not RDMA containers according to the
// spec.
func (q *question) explain(pod corev1.Pod, to *command.Pod) ([]string, error) {
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"} // the API server omits TypeMeta
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
				to.Spec = append(to.Spec, fmt.Sprintf("%s: the environment sets %s=%s", c.Name, v.Name, v.Value))
			}
		}
	}
	return facts.NotRDMA, nil
}

// wrongBySpec returns a function that reports whether the pod's spec shows that a check would find a fault.
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

// namesOne reports whether a line contains the name of an HCA that a variable of the pod selects. In this case, the
// program did not find the HCA.
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
		case apierrors.IsBadRequest(err): // no log yet; the state contains the reason
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

// counter counts the bytes that are read.
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

// readEvents adds the pod's events, with the oldest first, and the messages in its containers' states.
func readEvents(c *cluster, pod corev1.Pod, to *command.Pod) {
	which := metav1.ListOptions{FieldSelector: fields.Set{"involvedObject.kind": "Pod", "involvedObject.name": pod.Name,
		"involvedObject.uid": string(pod.UID)}.String()}
	var events []*corev1.Event
	err := list(c, "events", pod.Namespace, which, func(e *corev1.Event) { events = append(events, e) })
	if err != nil {
		to.Unread = append(to.Unread, fmt.Sprintf("the pod's events: %v", err))
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
	if err != nil { // reading a string never fails
		to.Unread = append(to.Unread, fmt.Sprintf("the pod's events: %v", err))
		return
	}
	to.Texts = append(to.Texts, command.Text{Name: "events and states", Report: report})
}

// lastSeen returns the last time of an event, from either of the API's two formats.
func lastSeen(e *corev1.Event) *metav1.Time {
	last := e.LastTimestamp
	if last.IsZero() {
		last = metav1.NewTime(cmp.Or(e.EventTime, metav1.NewMicroTime(e.CreationTimestamp.Time)).Time)
	}
	return &last
}
