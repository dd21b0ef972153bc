// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspectest

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// SpecType is the type URL of OCI runtime specs.
const SpecType = "types.containerd.io/opencontainers/runtime-spec/1/Spec"

// Server stores containers by namespace. Server behaves like containerd (core/metadata, containerStore). Server refuses
// a request without a namespace, and does not find containers in other namespaces. An update without a mask replaces
// all mutable fields. An update with a mask replaces the fields in the mask. The response contains the stored
// container.
type Server struct {
	containers.UnimplementedContainersServer
	Socket string

	mu      sync.Mutex
	kept    map[string]map[string]*containers.Container
	gets    map[string]int
	updates map[string]int
	looks   map[string]int
	started map[string]bool

	// NoTasks, if set before the first request, is the error for every request about a task.
	NoTasks error
	// BeforeGet and BeforeUpdate, if set before the first request, are called before a request is executed. The argument n
	// is the number of the request for the container, starting from 1. If BeforeGet or BeforeUpdate returns an error, the
	// error is the response.
	BeforeGet, BeforeUpdate func(id string, n int) error
	// AfterUpdate, if set before the first request, is called after an update was executed. If AfterUpdate returns an
	// error, the error is the response, although the update was stored.
	AfterUpdate func(id string, n int) error
}

// NewServer starts a server on a new socket. The server ends when the test ends.
func NewServer(t testing.TB) *Server {
	t.Helper()
	socket := filepath.Join(scratch.Dir(t), "containerd.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(t, listener)
	s.Socket = socket
	return s
}

// Serve starts a server on a listener. The server ends when the test ends.
func Serve(t testing.TB, listener net.Listener) *Server {
	t.Helper()
	s := &Server{kept: map[string]map[string]*containers.Container{}, gets: map[string]int{}, updates: map[string]int{},
		looks: map[string]int{}, started: map[string]bool{}}
	server := grpc.NewServer()
	containers.RegisterContainersServer(server, s)
	tasks.RegisterTasksServer(server, &taskService{server: s})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("serving containers: %v", err)
		}
	})
	return s
}

// Put creates a container with the given spec. The container also has labels and an extension, which edits must not
// change.
func (s *Server) Put(namespace, id string, spec []byte) {
	s.PutContainer(namespace, &containers.Container{
		ID: id, Image: "registry.example/train:1", Snapshotter: "overlayfs", SnapshotKey: id,
		Labels:     map[string]string{"io.kubernetes.pod.name": "train"},
		Runtime:    &containers.Container_Runtime{Name: "io.containerd.runc.v2"},
		Spec:       &anypb.Any{TypeUrl: SpecType, Value: spec},
		Extensions: map[string]*anypb.Any{"io.cri-containerd.container.metadata": {TypeUrl: "x", Value: []byte{1, 2, 3}}},
	})
}

// PutContainer creates or replaces a container.
func (s *Server) PutContainer(namespace string, c *containers.Container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept[namespace] == nil {
		s.kept[namespace] = map[string]*containers.Container{}
	}
	c = proto.CloneOf(c)
	c.CreatedAt = timestamppb.Now()
	c.UpdatedAt = c.CreatedAt
	s.kept[namespace][c.GetID()] = c
}

// Remove removes a container if the container exists.
func (s *Server) Remove(namespace, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept[namespace], id)
}

// Container returns a stored container; nil if the container does not exist.
func (s *Server) Container(namespace, id string) *containers.Container {
	s.mu.Lock()
	defer s.mu.Unlock()
	return proto.CloneOf(s.kept[namespace][id])
}

// Spec returns the text of a container's spec.
func (s *Server) Spec(namespace, id string) []byte {
	return s.Container(namespace, id).GetSpec().GetValue()
}

// SetSpec overwrites a container's spec, as another client would.
func (s *Server) SetSpec(namespace, id string, spec []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept[namespace][id].Spec.Value = spec
	s.kept[namespace][id].UpdatedAt = timestamppb.Now()
}

// Gets returns the number of Get requests for a container.
func (s *Server) Gets(id string) int { return s.counted(s.gets, id) }

// Updates returns the number of Update requests for a container.
func (s *Server) Updates(id string) int { return s.counted(s.updates, id) }

// Looks returns the number of requests for a container's task.
func (s *Server) Looks(id string) int { return s.counted(s.looks, id) }

// StartTask creates a container's task.
func (s *Server) StartTask(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started[id] = true
}

// taskService implements the tasks API. taskService is a separate type, because the methods of the tasks API and the
// containers API have the same names.
type taskService struct {
	tasks.UnimplementedTasksServer
	server *Server
}

// Get implements the tasks API.
func (t *taskService) Get(_ context.Context, r *tasks.GetRequest) (*tasks.GetResponse, error) {
	s := t.server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks[r.GetContainerID()]++
	if s.NoTasks != nil {
		return nil, s.NoTasks
	}
	if !s.started[r.GetContainerID()] {
		return nil, status.Errorf(codes.NotFound, "task %s not found", r.GetContainerID())
	}
	return &tasks.GetResponse{}, nil
}

func (s *Server) counted(counts map[string]int, id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return counts[id]
}

func (s *Server) request(counts map[string]int, id string, before func(string, int) error) (n int, err error) {
	s.mu.Lock()
	counts[id]++
	n = counts[id]
	s.mu.Unlock()
	if before != nil {
		err = before(id, n)
	}
	return n, err
}

// Get implements the containers API.
func (s *Server) Get(ctx context.Context, r *containers.GetContainerRequest) (*containers.GetContainerResponse, error) {
	if _, err := s.request(s.gets, r.GetID(), s.BeforeGet); err != nil {
		return nil, err
	}
	namespace, err := namespaceOf(ctx)
	if err != nil {
		return nil, err
	}
	c := s.Container(namespace, r.GetID())
	if c == nil {
		return nil, status.Errorf(codes.NotFound, "container %q in namespace %q: not found", r.GetID(), namespace)
	}
	return &containers.GetContainerResponse{Container: c}, nil
}

// Update implements the containers API.
func (s *Server) Update(ctx context.Context, r *containers.UpdateContainerRequest) (*containers.UpdateContainerResponse,
	error) {
	id := r.GetContainer().GetID()
	n, err := s.request(s.updates, id, s.BeforeUpdate)
	if err != nil {
		return nil, err
	}
	namespace, err := namespaceOf(ctx)
	if err != nil {
		return nil, err
	}
	updated, err := s.update(namespace, r)
	if err != nil {
		return nil, err
	}
	if s.AfterUpdate != nil {
		if err := s.AfterUpdate(id, n); err != nil {
			return nil, err
		}
	}
	return &containers.UpdateContainerResponse{Container: updated}, nil
}

func (s *Server) update(namespace string, r *containers.UpdateContainerRequest) (*containers.Container, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := r.GetContainer()
	kept := s.kept[namespace][want.GetID()]
	if kept == nil {
		return nil, status.Errorf(codes.NotFound, "container %q in namespace %q: not found", want.GetID(), namespace)
	}
	updated := proto.CloneOf(kept)
	paths := r.GetUpdateMask().GetPaths()
	if len(paths) == 0 {
		if want.GetSnapshotter() != kept.GetSnapshotter() || want.GetRuntime().GetName() != kept.GetRuntime().GetName() {
			return nil, status.Error(codes.InvalidArgument, "snapshotter and runtime are immutable")
		}
		paths = []string{"labels", "spec", "extensions", "image", "snapshotkey"}
	}
	for _, path := range paths {
		if err := set(updated, want, path); err != nil {
			return nil, err
		}
	}
	updated.UpdatedAt = timestamppb.Now()
	s.kept[namespace][want.GetID()] = updated
	return proto.CloneOf(updated), nil
}

// set applies one path of an update mask.
func set(updated, want *containers.Container, path string) error {
	if key, ok := strings.CutPrefix(path, "labels."); ok {
		if updated.Labels == nil {
			updated.Labels = map[string]string{}
		}
		updated.Labels[key] = want.GetLabels()[key]
		return nil
	}
	switch path {
	case "labels":
		updated.Labels = want.GetLabels()
	case "spec":
		updated.Spec = want.GetSpec()
	case "extensions":
		updated.Extensions = want.GetExtensions()
	case "image":
		updated.Image = want.GetImage()
	case "snapshotkey":
		updated.SnapshotKey = want.GetSnapshotKey()
	default:
		return status.Errorf(codes.InvalidArgument, "cannot update %q", path)
	}
	return nil
}

func namespaceOf(ctx context.Context) (string, error) {
	given := metadata.ValueFromIncomingContext(ctx, "containerd-namespace")
	if len(given) != 1 || given[0] == "" {
		return "", status.Error(codes.FailedPrecondition, "namespace is required")
	}
	return given[0], nil
}
