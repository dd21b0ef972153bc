// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs the heart of a Kubernetes cluster inside the node: etcd and an API server. Without
// StartControllers there are no controllers and no scheduler: a pod goes to the node that it names. It needs the node's
// Kubernetes parts, and knows nothing of what is tested.
package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
)

const (
	dir          = "/run/cluster"
	address      = "https://127.0.0.1:6443" // its certificate does not say localhost
	etcdAddress  = "http://127.0.0.1:2379"
	token        = "everything-is-allowed"
	startTimeout = 5 * time.Minute // a minute on an emulated CPU with nothing else to do
	pace         = 500 * time.Millisecond
)

// Files in the directory: this package's, and those that the API server writes.
var (
	certificate = filepath.Join(dir, "certs/apiserver.crt")
	kubeconfig  = filepath.Join(dir, "kubeconfig")
	tokens      = filepath.Join(dir, "tokens.csv")
	accountKey  = filepath.Join(dir, "service-account.key")
)

// Cluster is a running cluster.
type Cluster struct {
	etcd, server *daemon.Process
	controllers  []*daemon.Process
	client       *http.Client
}

// Start runs an empty cluster and waits until it is ready.
func Start(ctx context.Context) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	parts, err := node.Parts()
	if err != nil {
		return nil, err
	}
	program := filepath.Join(parts.Kubernetes(), "kube-apiserver")
	if _, err := os.Stat(program); err != nil {
		return nil, fmt.Errorf("no API server: %w: run rdma-node with --parts all, which builds it", err)
	}
	if err := writeFiles(); err != nil {
		return nil, err
	}
	c := &Cluster{}
	if c.etcd, err = daemon.Start(nil, parts.Etcd(), "--data-dir", filepath.Join(dir, "etcd")); err != nil {
		return nil, err
	}
	for {
		if c.server, err = startServer(program); err != nil {
			break
		}
		// On a slow machine the server gives up on parts of its own after a minute, and ends, and has to be started again.
		if err = c.awaitReady(ctx); err == nil || ctx.Err() != nil || !c.server.Ended() {
			break
		}
	}
	if err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

func startServer(program string) (*daemon.Process, error) {
	return daemon.Start(nil, program,
		// Debian's etcd does not report its progress to the server's cache; the server then waits, and fills its log.
		"--etcd-servers="+etcdAddress, "--watch-cache=false",
		"--bind-address=127.0.0.1", "--cert-dir="+filepath.Dir(certificate),
		"--token-auth-file="+tokens, "--authorization-mode=AlwaysAllow",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+accountKey, "--service-account-signing-key-file="+accountKey,
		"--service-cluster-ip-range=10.96.0.0/24",
		// No controller makes the accounts that it would look for.
		"--disable-admission-plugins=ServiceAccount", "--allow-privileged",
		// There is no other candidate.
		"--enable-priority-and-fairness=false",
	)
}

func (c *Cluster) awaitReady(ctx context.Context) error {
	var last error
	err := c.Await(ctx, "is ready", func() bool {
		last = c.connect()
		if last == nil {
			last = c.call(ctx, request{path: "/readyz"}, nil)
		}
		return last == nil
	})
	if err != nil {
		return fmt.Errorf("%w\nIts last answer: %w", err, last)
	}
	return nil
}

// writeFiles writes what the API server and its clients read, over what an earlier cluster has left.
func writeFiles() error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(certificate), 0o755); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	for file, text := range map[string]string{
		accountKey: string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})),
		tokens:     token + ",tester,tester,system:masters\n",
		kubeconfig: fmt.Sprintf(kubeconfigForm, address, certificate, token),
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

const kubeconfigForm = `apiVersion: v1
kind: Config
clusters: [{name: node, cluster: {server: "%s", certificate-authority: %s}}]
users: [{name: tester, user: {token: %s}}]
contexts: [{name: node, context: {cluster: node, user: tester}}]
current-context: node
`

// Kubeconfig is the file with which a kubelet joins the cluster.
func (*Cluster) Kubeconfig() string { return kubeconfig }

// Stop ends the cluster.
func (c *Cluster) Stop() {
	for _, p := range c.controllers {
		p.Stop()
	}
	if c.client != nil {
		c.client.CloseIdleConnections()
	}
	if c.server != nil {
		c.server.Stop()
	}
	c.etcd.Stop()
}

// Await waits for a condition, as long as the API server runs. It looks now and then only: what it looks at costs the
// server time.
func (c *Cluster) Await(ctx context.Context, what string, condition func() bool) error {
	return daemon.Await(ctx, pace, what, condition, append([]*daemon.Process{c.server, c.etcd}, c.controllers...)...)
}
