// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// TestMain is the program itself where a test has started it.
func TestMain(m *testing.M) {
	file := os.Getenv("KUBECTL_RDMA")
	if file == "" {
		klog.SetOutput(io.Discard) // what the server's side of a WebSocket says of the client that is done
		klog.LogToStderr(false)
		os.Exit(m.Run())
	}
	status := execute(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	text, err := os.ReadFile("/proc/self/status") // the rusage has that of the process that forked as well
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		panic(err)
	}
	os.Exit(status)
}

// says is what rdma-spec says in a pod, and what is wrong with its node.
type says struct {
	stdout, stderr string
	status         int
	hangs          bool // it never answers
	broken         bool // its kubelet cannot be reached
}

// server is an API server, with pseudonyms for its kubelets.
type server struct {
	nodes []corev1.Node
	pods  []corev1.Pod
	sets  []appsv1.DaemonSet
	may   func(r *http.Request) bool // nil: everybody may do everything
	says  map[string]says            // of pods; "" is what all others say
	delay time.Duration              // of each answer of a kubelet
	old   bool                       // it knows no WebSocket
	stdin string                     // of what is called

	logs   map[string]string // of POD CONTAINER, or of previous POD CONTAINER
	events []corev1.Event

	becomes   func(p *corev1.Pod)      // makes the status of a pod that was created; nil: it runs
	meanwhile func(caller *os.Process) // called when a command is called in such a pod
	made      []corev1.Pod             // pods that were created, and
	gone      []string                 // those that were deleted

	caller *os.Process
	told   strings.Builder // what calls have written, for a golden file

	mu     sync.Mutex
	asked  []string // commands, and where
	now    atomic.Int64
	atOnce atomic.Int64
	ends   chan struct{}
	pages  sync.Map // the objects that selectors select, by the request without its page
}

// certificate returns one for the loopback, whose signatures take less time than those of httptest's own.
func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// call is what became of a call of kubectl rdma.
type call struct {
	stdout, stderr string
	status         int
	computed       time.Duration // CPU time
	memory         int64         // in bytes
}

// rdma calls kubectl rdma, in a process of its own.
func (s *server) rdma(t *testing.T, args ...string) (c call) {
	t.Helper()
	s.ends = make(chan struct{})
	s.pages.Clear()
	api := httptest.NewUnstartedServer(s)
	api.TLS = &tls.Config{Certificates: []tls.Certificate{certificate(t)}}
	api.StartTLS()
	defer api.Close()
	defer close(s.ends)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	kubeconfig := filepath.Join(scratch.Dir(t), "config")
	err := os.WriteFile(kubeconfig, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: test,
		clusters: [{name: test, cluster: {server: %q, certificate-authority-data: %s}}], users: [{name: test, user: {token: secret}}],
		contexts: [{name: test, context: {cluster: test, user: test}}, {name: other, context: {cluster: none, user: test}}]}`,
		api.URL, base64.StdEncoding.EncodeToString(authority)), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	var out, notes strings.Builder
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "KUBECTL_RDMA="+kubeconfig+".memory", "KUBECONFIG="+kubeconfig)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(s.stdin), &out, &notes
	var ended *exec.ExitError
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.caller = cmd.Process
	s.mu.Unlock()
	if err := cmd.Wait(); err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	text, err := os.ReadFile(kubeconfig + ".memory")
	if err != nil {
		t.Fatal(err)
	}
	peak, err := strconv.ParseInt(regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindStringSubmatch(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	p := cmd.ProcessState
	return call{out.String(), notes.String(), p.ExitCode(), p.UserTime() + p.SystemTime(), peak << 10}
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/")
	switch {
	case r.Header.Get("Authorization") != "Bearer secret":
		http.Error(w, "who are you?", http.StatusUnauthorized)
	case s.may != nil && !s.may(r):
		fails(w, http.StatusForbidden, metav1.StatusReasonForbidden, "you may not: "+path[len(path)-1])
	case path[len(path)-1] == "daemonsets":
		page(s, w, r, "DaemonSetList", s.sets)
	case path[len(path)-1] == "events":
		page(s, w, r, "EventList", s.events)
	case len(path) == 5 && path[4] == "log":
		s.log(w, r, path[3])
	case len(path) == 4 && path[1] != "rdma-spec":
		s.pod(w, path[1], path[3])
	case len(path) == 3 && r.Method == http.MethodPost, len(path) == 4:
		s.hostPod(w, r, path[len(path)-1])
	case len(path) == 5 && path[4] == "exec":
		s.exec(w, r, path[3])
	case path[len(path)-1] == "nodes":
		page(s, w, r, "NodeList", s.nodes)
	default:
		page(s, w, r, "PodList", s.pods)
	}
}

// page answers with a page of the objects that the selectors select.
func page[T any, P interface {
	*T
	metav1.Object
}](s *server, w http.ResponseWriter, r *http.Request, kind string, objects []T) {
	q := r.URL.Query()
	byLabel, err1 := labels.Parse(q.Get("labelSelector"))
	byField, err2 := fields.ParseSelector(q.Get("fieldSelector"))
	if err := errors.Join(err1, err2); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, namespace, _ := strings.Cut(r.URL.Path, "/namespaces/")
	namespace, _, _ = strings.Cut(namespace, "/")
	request := r.URL.Path + " " + q.Get("labelSelector") + " " + q.Get("fieldSelector")
	kept, is := s.pages.Load(request)
	if !is {
		kept = slices.DeleteFunc(slices.Clone(objects), func(o T) bool {
			of := fields.Set{}
			switch o := any(&o).(type) {
			case *corev1.Pod:
				of = fields.Set{"spec.nodeName": o.Spec.NodeName, "status.phase": string(o.Status.Phase)}
			case *corev1.Node:
				of = fields.Set{"metadata.name": o.Name}
			case *corev1.Event:
				of = fields.Set{"involvedObject.kind": o.InvolvedObject.Kind, "involvedObject.name": o.InvolvedObject.Name,
					"involvedObject.uid": string(o.InvolvedObject.UID)}
			}
			return namespace != "" && P(&o).GetNamespace() != namespace ||
				!byLabel.Matches(labels.Set(P(&o).GetLabels())) || !byField.Matches(of)
		})
		s.pages.Store(request, kept)
	}
	selected := kept.([]T)
	from, _ := strconv.Atoi(q.Get("continue")) // "" is the first page
	limit, _ := strconv.Atoi(q.Get("limit"))
	if limit == 0 {
		limit = len(selected)
	}
	items, meta := selected[from:min(from+limit, len(selected))], metav1.ListMeta{ResourceVersion: "1"}
	if from+limit < len(selected) {
		meta.Continue = strconv.Itoa(from + limit)
	}
	version := "v1"
	if kind == "DaemonSetList" {
		version = "apps/v1"
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": version, "kind": kind, "metadata": meta, "items": items})
}

// pod answers with a pod of another namespace than the DaemonSet's.
func (s *server) pod(w http.ResponseWriter, namespace, name string) {
	for _, p := range s.pods {
		if p.Namespace == namespace && p.Name == name {
			p.APIVersion, p.Kind = "v1", "Pod"
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(p)
			return
		}
	}
	fails(w, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("pods %q not found", name))
}

// log answers with the beginning of a container's log.
func (s *server) log(w http.ResponseWriter, r *http.Request, pod string) {
	q := r.URL.Query()
	of := pod + " " + q.Get("container")
	if q.Get("previous") == "true" {
		of = "previous " + of
	}
	text, is := s.logs[of]
	most, err := strconv.Atoi(q.Get("limitBytes"))
	switch {
	case err != nil:
		fails(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "the log has no end")
	case !is:
		fails(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "container is waiting to start")
	default:
		_, _ = io.WriteString(w, text[:min(most, len(text))])
	}
}

// fails answers with an error of the API server.
func fails(w http.ResponseWriter, code int32, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(code))
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Code: code,
		Status: metav1.StatusFailure, Reason: reason, Message: message})
}

// hostPod creates, gets, or deletes a pod.
func (s *server) hostPod(w http.ResponseWriter, r *http.Request, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pod corev1.Pod
	switch r.Method {
	case http.MethodPost:
		text, _ := io.ReadAll(r.Body)
		into, _, err := clientscheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		pod = *into.(*corev1.Pod)
		s.made = append(s.made, pod)
	case http.MethodDelete:
		s.gone = append(s.gone, name)
	default:
		pod = s.made[len(s.made)-1]
		pod.Status.Phase = corev1.PodRunning
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		if s.becomes != nil {
			s.becomes(&pod)
		}
	}
	pod.APIVersion, pod.Kind = "v1", "Pod"
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(pod)
}

// exec is a command in a pod, by WebSocket or by SPDY.
func (s *server) exec(w http.ResponseWriter, r *http.Request, pod string) {
	if strings.HasPrefix(pod, "rdma-spec-") { // of which the rest of the name is random
		pod = "host"
	}
	said, own := s.says[pod]
	if !own {
		said = s.says[""]
	}
	s.mu.Lock()
	if s.meanwhile != nil {
		s.meanwhile(s.caller)
	}
	s.asked = append(s.asked, pod+" "+r.URL.Query().Get("container")+": "+strings.Join(r.URL.Query()["command"], " "))
	s.mu.Unlock()
	now := s.now.Add(1)
	defer s.now.Add(-1)
	for most := s.atOnce.Load(); now > most && !s.atOnce.CompareAndSwap(most, now); most = s.atOnce.Load() {
	}
	time.Sleep(s.delay)
	switch {
	case said.broken:
		http.Error(w, "error dialing backend\x1b[2J: no route to host", http.StatusInternalServerError)
		return
	case said.hangs:
		<-s.ends
		return
	}
	end := metav1.Status{Status: metav1.StatusSuccess}
	if said.status != 0 {
		end = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Message: "ended",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: strconv.Itoa(said.status)}}}}
	}
	text, _ := json.Marshal(end)
	speak := func(stdout, stderr, failed io.Writer) {
		_, _ = io.WriteString(stdout, said.stdout)
		_, _ = io.WriteString(stderr, said.stderr)
		_, _ = failed.Write(text)
	}
	if wsstream.IsWebSocketRequest(r) && !s.old {
		channels := []wsstream.ChannelType{wsstream.IgnoreChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.IgnoreChannel}
		conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v5.channel.k8s.io": {Binary: true, Channels: channels}})
		_, streams, err := conn.Open(w, r)
		if err != nil {
			return
		}
		speak(streams[1], streams[2], streams[3])
		_ = conn.Close()
		return
	}
	if r.Method != http.MethodPost {
		http.Error(w, "no WebSocket", http.StatusBadRequest)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		return
	}
	made := make(chan httpstream.Stream, 3)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		made <- stream
		return nil
	})
	if conn == nil {
		return
	}
	streams := map[string]httpstream.Stream{}
	for range 3 {
		stream := <-made
		streams[stream.Headers().Get(corev1.StreamType)] = stream
	}
	speak(streams[corev1.StreamTypeStdout], streams[corev1.StreamTypeStderr], streams[corev1.StreamTypeError])
	for _, stream := range streams {
		_ = stream.Close()
	}
	_ = conn.Close()
}
