// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command nri-rdma is the NRI plugin that gives RDMA containers the memlock, CAP_IPC_LOCK, and devices that the
// containers need.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/plugin"
	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/plugin/inventory"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/podresources"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/registration"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
)

// version is set at build time.
var version = "devel"

// exitWrongCall is the exit status for invalid usage: EX_USAGE in sysexits.h. The status differs from 2, which Go uses
// for a panic.
const exitWrongCall = 64

type options struct {
	config, name, index, socket, root string
	handover                          string
	podResourcesSocket, http          string
	metrics, ready                    string
	budget                            time.Duration
	containerd, namespace             string
	logLevel, logFormat               string
	validate, version                 bool
}

func main() {
	o, err := parseFlags(os.Args[1:])
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "nri-rdma: %v; see 'nri-rdma --help'\n", err)
		os.Exit(exitWrongCall)
	case o.ready != "":
		os.Exit(askReady(o.ready, os.Stdout))
	case o.version:
		if _, err := fmt.Println("nri-rdma", version); err != nil {
			fmt.Fprintf(os.Stderr, "nri-rdma: cannot print the version: %v\n", err)
			os.Exit(1)
		}
		return
	}
	log, err := newLogger(o)
	if err != nil {
		fmt.Fprintf(os.Stderr, "nri-rdma: %v; see 'nri-rdma --help'\n", err)
		os.Exit(exitWrongCall)
	}
	os.Exit(serve(o, log))
}

// serve runs the plugin until the process receives a signal, and returns the exit status.
func serve(o options, log *logrus.Logger) (status int) {
	signal.Ignore(syscall.SIGPIPE) // the plugin continues even if its log's reader exits
	out := newPatientLog(logOutput())
	defer out.Close()
	log.SetOutput(out)
	logrus.SetOutput(out) // ttrpc uses logrus's standard logger
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := servePlugin(ctx, o, log); err != nil {
		log.Error(err)
		return 1
	}
	return 0
}

func parseFlags(args []string) (options, error) {
	var o options
	f := pflag.NewFlagSet("nri-rdma", pflag.ContinueOnError)
	f.SortFlags = false
	f.SetOutput(os.Stdout) // for the help text; main prints errors
	f.StringVar(&o.config, "config", "", "the configuration `FILE`; by default, "+policy.ConfigFile+
		" if the file exists, else the configuration from the runtime, else the built-in defaults")
	f.StringVar(&o.name, "name", "",
		"the plugin's `NAME`, as used in the required-plugins.noderesource.dev annotation; the default is rdma, or "+
			"rdma-validator with --validate")
	f.StringVar(&o.index, "index", "90", "the plugin's two-digit index; plugins that inject devices need a lower index")
	f.StringVar(&o.socket, "socket", api.DefaultSocketPath, "the runtime's NRI socket")
	f.StringVar(&o.handover, "handover", "",
		"hand the connection over to a new process through this `DIR`, so that the runtime does not notice the change; "+
			"off by default")
	f.StringVar(&o.http, "http", "",
		"serve /metrics, /healthz, and /readyz at this `ADDR`, such as 127.0.0.1:9797 or unix:/run/nri-rdma.sock; off by "+
			"default")
	f.StringVar(&o.metrics, "http-registered", "",
		"once the plugin is registered, also serve the --http paths at this `ADDR` (for upgrades with host networking, "+
			"during which the old and new processes run at the same time); off by default")
	f.StringVar(&o.ready, "ready", "", "check whether the nri-rdma process that listens on this Unix `SOCKET` "+
		"(its --http address) is ready, and exit")
	f.StringVar(&o.containerd, "containerd-address", "",
		"the `PATH` of containerd's socket, which is needed to grant CAP_IPC_LOCK; by default, nri-rdma tries the usual "+
			"paths under the root directory")
	f.StringVar(&o.namespace, "containerd-namespace", storedspec.DefaultNamespace,
		"the containerd namespace of Kubernetes containers")
	f.StringVar(&o.root, "root", "/", "find sysfs and devices under this `DIR`")
	f.StringVar(&o.podResourcesSocket, "pod-resources-socket", "", "the kubelet's pod resources socket; the default is "+
		podresources.DefaultSocket+" under the root directory")
	f.DurationVar(&o.budget, "budget", plugin.DefaultBudget,
		"the maximum total time that a container's creation waits for the kubelet and the first inventory of HCAs, "+
			"capped at three quarters of the runtime's timeout for plugins; increase this time only if the node is slow")
	f.BoolVar(&o.validate, "validate", false,
		"run as a second process that changes nothing, but refuses RDMA containers that would start without their grant")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warning, or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.BoolVar(&o.version, "version", false, "print the version and exit")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case !regexp.MustCompile(`^\d\d$`).MatchString(o.index):
		return o, fmt.Errorf("--index %q is invalid: use two digits, such as 90", o.index)
	case o.budget < breaker.Enough:
		return o, fmt.Errorf("--budget %s is too low: use at least %s, because even a healthy kubelet can take that long",
			o.budget, breaker.Enough)
	}
	switch {
	case registration.Launched(): // the runtime takes the name and the index from the file's name
		o.name = os.Getenv(api.PluginNameEnvVar)
		o.index = os.Getenv(api.PluginIdxEnvVar)
	case o.name == "":
		o.name = "rdma"
		if o.validate {
			o.name = "rdma-validator"
		}
	}
	o.podResourcesSocket = cmp.Or(o.podResourcesSocket, filepath.Join(o.root, podresources.DefaultSocket))
	return o, nil
}

func newLogger(o options) (*logrus.Logger, error) {
	log := logrus.New()
	level, err := logrus.ParseLevel(o.logLevel)
	if err != nil {
		return nil, fmt.Errorf("--log-level %q is invalid: use debug, info, warning, or error", o.logLevel)
	}
	log.SetLevel(level)
	switch o.logFormat {
	case "text":
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, DisableColors: true})
	case "json":
		log.SetFormatter(&logrus.JSONFormatter{})
	default:
		return nil, fmt.Errorf("--log-format %q is invalid: use text or json", o.logFormat)
	}
	return log, nil
}

// deployment returns the DaemonSet that this process belongs to, or "" outside a pod of the chart. The environment
// contains the pod's namespace and name. The pod's name is the DaemonSet's name with a random suffix.
func deployment(environment func(string) string) string {
	namespace := environment("NRI_RDMA_NAMESPACE")
	pod := environment("NRI_RDMA_POD")
	const random = 5
	if namespace == "" || len(pod) <= random {
		return ""
	}
	return "DaemonSet." + namespace + "." + strings.TrimSuffix(pod[:len(pod)-random], "-")
}

// raise returns the command that raises the limits of this node's running containers. In a cluster, the command creates
// a pod that has more privileges than the plugin's pod.
func raise(environment func(string) string) string {
	node := environment("NRI_RDMA_NODE")
	if node == "" {
		return "rdma-spec repair"
	}
	command := "kubectl rdma repair " + node
	if namespace := environment("NRI_RDMA_NAMESPACE"); namespace != defaultNamespace {
		command += " --namespace " + namespace
	}
	return command
}

// defaultNamespace is the namespace in which kubectl rdma looks for the plugin's pods.
const defaultNamespace = "rdma-spec"

// servePlugin creates the plugin and keeps it registered until the context is done.
func servePlugin(ctx context.Context, o options, log *logrus.Logger) error {
	saveMemory()
	clients := newAPIs(o, log)
	hcas := inventory.New(o.root, log)
	go hcas.Run(ctx)
	with := plugin.Options{
		Name: o.name, Index: o.index, Socket: o.socket, Handover: o.handover, Log: log,
		Root: o.root, Version: version, Deployment: deployment(os.Getenv),
		Validate:  o.validate,
		Resources: clients.resources,
		Inventory: hcas, Budget: o.budget,
		Startable: limits.New(o.root).Startable,
	}
	if !o.validate {
		with.StoredSpecs = clients.specs
		with.RunningSpecs = clients.beside
		with.Limits = limits.New(o.root)
		with.Raise = raise(os.Getenv)
	}
	p := plugin.New(with)
	if o.http != "" {
		stop, err := serveHTTP(o.http, p, log, clients.collectors()...)
		if err != nil {
			return err
		}
		defer stop()
	}
	if o.metrics != "" {
		go serveRegistered(ctx, o.metrics, p, log, clients.collectors()...)
	}
	log.WithField("version", version).Info("nri-rdma started")
	defer log.Info("nri-rdma stopped")
	config := policy.File{Path: cmp.Or(o.config, policy.ConfigFile), Optional: o.config == ""}
	use := func(loaded *policy.Policy, err error) { p.Use(loaded, config.Path, err) }
	if loaded, err := config.Read(); loaded != nil || err != nil {
		use(loaded, err)
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	if with.Deployment == "" { // in a DaemonSet, each new configuration restarts the process
		go config.Follow(ctx, hangup, use)
	}
	go notifySystemd(ctx, p, log)
	return p.Run(ctx)
}
