// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a minimal Kubernetes cluster on the node: etcd and an API server. Without StartControllers,
// there are no controllers and no scheduler, so a pod runs only on the node that it names. The package needs the node's
// Kubernetes parts, and does not know what is tested.
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
	address      = "https://127.0.0.1:6443" // an IP address, because the certificate does not contain localhost
	etcdAddress  = "http://127.0.0.1:2379"
	token        = "everything-is-allowed"
	startTimeout = 5 * time.Minute // it takes a minute on an otherwise idle emulated CPU
	pace         = 500 * time.Millisecond
)

// Files in the directory, which this package or the API server writes.
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
		// On a slow machine, the server stops waiting for its own parts after a minute, and ends. It must then be started
		// again.
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
		// Debian's etcd does not report its progress to the server's watch cache. With the cache, the server waits for these
		// reports, and fills its log.
		"--etcd-servers="+etcdAddress, "--watch-cache=false",
		"--bind-address=127.0.0.1", "--cert-dir="+filepath.Dir(certificate),
		"--token-auth-file="+tokens, "--authorization-mode=AlwaysAllow",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+accountKey, "--service-account-signing-key-file="+accountKey,
		"--service-cluster-ip-range=10.96.0.0/24",
		// No controller creates the service accounts that this plugin looks for.
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

// writeFiles writes the files that the API server and its clients read. It overwrites those of an earlier cluster.
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

// Kubeconfig returns the path of the file with which a kubelet joins the cluster.
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

// Await waits for a condition while the API server runs. It checks the condition only now and then, because a check
// takes CPU time from the server.
func (c *Cluster) Await(ctx context.Context, what string, condition func() bool) error {
	return daemon.Await(ctx, pace, what, condition, append([]*daemon.Process{c.server, c.etcd}, c.controllers...)...)
}
