// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/files/atomicfile"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// collectOptions are the flags of `rdma-spec collect`.
type collectOptions struct {
	node.Options
	to        string
	list      bool
	anonymize bool
	checks    []doctor.Check
}

// Command is rdma-spec collect, which copies what the checks read.
func Command(checks []doctor.Check) *cobra.Command {
	o := collectOptions{checks: checks}
	cmd := &cobra.Command{
		Use:   "collect",
		Short: "Write a support bundle for this node",
		Long: `Write a support bundle: a tar.gz file with the data that the devices, status, and doctor commands
read on this node. The file contains information about HCAs and PCI devices from sysfs, the limits
and capabilities of processes, the container runtimes' settings that affect RDMA, the kernel log's
lines about RDMA, and the responses of the runtimes and the kubelet. On another machine, devices,
status, and doctor report the same results with --root FILE.tar.gz.

The support bundle contains no configuration files and no command-line arguments. The only
environment variables that it contains are NCCL_IB_HCA, NCCL_IB_GID_INDEX, NCCL_SOCKET_IFNAME,
NVIDIA_MOFED, and UCX_NET_DEVICES. For NVIDIA_VISIBLE_DEVICES and HABANA_VISIBLE_DEVICES,
it records only whether they request all, some, or no accelerators. Error messages are redacted.
The support bundle contains addresses, MACs, GUIDs, and the names of hosts, pods, and namespaces.
--anonymize replaces them with numbered pseudonyms. In an anonymized bundle, doctor finds the same
faults.

The command lists the paths and sizes of all files on standard error before it writes the bundle.
--list only lists them. Only the owner can read the file that --to writes.

A file that cannot be read within 2 seconds is reported as missing, and so is a daemon's
response that does not arrive within 10 seconds.

The exit status is 0 if the bundle is written, even if files are missing, and 3 if it cannot
be created or written.`,
		Example: `  rdma-spec collect --to node.tar.gz
  rdma-spec collect --to node.tar.gz --anonymize
  rdma-spec collect --list
  rdma-spec doctor --root node.tar.gz`,
		GroupID: cli.GroupNode,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.writeArchive(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	cli.AddFileFlag(f, &o.to, "write the support bundle to a `FILE` instead of standard output, atomically and with "+
		"mode 0600")
	f.BoolVar(&o.anonymize, "anonymize", false,
		"replace host, pod, namespace, and user names, IP and MAC addresses, and GUIDs with numbered pseudonyms")
	f.BoolVar(&o.list, "list", false, "only list what the support bundle would contain")
	cli.AddDurationFlag(f, &o.Timeout, "timeout", node.Daemons,
		"timeout for all daemons together; a fifth of it applies to each file")
	o.AddFlags(f)
	return cmd
}

// alwaysCollected are files that commands read beside the checks of the doctor: devices and status, and what a reader
// wants to know of a node in any case.
var alwaysCollected = []string{
	"sys/class/infiniband/*/ports/*/gids/*", "sys/class/infiniband/*/ports/*/gid_attrs/types/*",
	"sys/class/infiniband/*/device/../numa_node", "sys/dev/char/*",
	"proc/[0-9]*/cgroup", "proc/[0-9]*/limits", "proc/[0-9]*/status", "proc/[0-9]*/uid_map", "proc/[0-9]*/ns/user",
	"etc/os-release", "proc/version", "proc/modules", "proc/sys/kernel/hostname", versionFile,
}

func (o collectOptions) writeArchive(ctx context.Context, stdout, stderr io.Writer) error {
	if o.to == "" && !o.list && cli.IsTerminal(stdout) {
		return cli.Usage(errors.New("cannot write a support bundle to a terminal: specify a file with --to, or list the " +
			"content with --list"))
	}
	entries, missing, err := o.collect(ctx, stderr)
	if err != nil {
		return err
	}
	listing := stderr
	if o.list {
		listing = stdout
	}
	writeListing(listing, entries)
	cli.WriteNotes(stderr, missing)
	if o.list {
		return nil
	}
	var text bytes.Buffer
	if err := archive.Write(&text, entries); err != nil {
		return fmt.Errorf("cannot create the support bundle: %w", err)
	}
	if o.to == "" {
		_, err := stdout.Write(text.Bytes())
		return err
	}
	if info, err := os.Stat(o.to); err == nil && info.Mode().IsRegular() { // a file that is there would keep its mode
		if err := os.Chmod(o.to, 0o600); err != nil {
			return fmt.Errorf("cannot write %s: %w", o.to, err)
		}
	}
	return atomicfile.Write(o.to, text.Bytes(), 0o600)
}

// collect returns what the archive has, in the order of the names, and what it misses.
func (o collectOptions) collect(ctx context.Context, stderr io.Writer) (entries []archive.Entry, missing []string,
	err error) {
	patterns := slices.Concat(node.Inventory, alwaysCollected)
	for _, c := range o.checks {
		patterns = append(patterns, c.Reads...)
	}
	patterns = append(patterns, process.VerbsFiles(o.Root, "[0-9]*")...)
	o.Inside = true
	o.Keep = true
	s, err := node.Open(o.Options)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = s.Close() }() // it was only read
	copied, missing, err := Take(ctx, s.Files, o.Each(), patterns)
	if err != nil {
		return nil, nil, err
	}
	maps.Copy(copied, managers(s))
	if _, isCopy := copied[versionFile]; !isCopy {
		copied[versionFile] = archive.Entry{Name: versionFile, Content: []byte(cli.Version + "\n")}
	}
	defer s.SayLate(stderr)()
	as := asIs
	answers := s.Answers()
	if o.anonymize {
		listing, _ := s.Listing() // without it, no container is named
		var containers []policy.Container
		for _, c := range listing.Containers {
			containers = append(containers, c.Container.Container)
		}
		named := newPseudonyms(containers)
		as = named.replace
		all := map[string]archive.Entry{}
		for _, name := range slices.Sorted(maps.Keys(copied)) {
			e := named.entry(copied[name])
			all[e.Name] = e
		}
		copied = all
	}
	for _, a := range answers {
		if a.Late {
			missing = append(missing, a.Error)
		}
		text, err := encodeAnswer(a, as)
		if err != nil {
			return nil, nil, fmt.Errorf("cannot store %s in the support bundle: %w", a.Name, err)
		}
		name := path.Join(node.AnswersDir, a.Name)
		copied[name] = archive.Entry{Name: name, Content: text}
	}
	entries = slices.SortedFunc(maps.Values(copied),
		func(a, b archive.Entry) int { return strings.Compare(a.Name, b.Name) })
	return withoutEmptyGIDs(entries), missing, nil
}

// managers returns the files that say which HCAs manage NVSwitches: of their vital product data, which has serial
// numbers, the word that counts.
func managers(s *node.Snapshot) map[string]archive.Entry {
	all := map[string]archive.Entry{}
	inventory, err := s.HCAs()
	if err != nil {
		return all // Take has what it could read of them
	}
	for _, h := range inventory.HCAs {
		if h.Manages == hca.NVSwitches {
			name := path.Join("sys/class/infiniband", h.Bus(), hca.ProductData)
			all[name] = archive.Entry{Name: name, Content: []byte(hca.ManagesNVSwitches)}
		}
	}
	return all
}

// versionFile has the version of the rdma-spec that collected.
const versionFile = "rdma-spec/version"

// withoutEmptyGIDs leaves out the empty places of tables of GIDs, which have up to 1024: all but the first one of a
// table, which shows that the table is not full.
func withoutEmptyGIDs(entries []archive.Entry) []archive.Entry {
	shown := map[string]bool{}
	return slices.DeleteFunc(entries, func(e archive.Entry) bool {
		dir, _ := path.Split(e.Name)
		if !strings.HasSuffix(dir, "/gids/") || bytes.ContainsAny(e.Content, "123456789abcdef") {
			return false
		}
		superfluous := shown[dir]
		shown[dir] = true
		return superfluous
	})
}

// writeListing lists what an archive has: the size and the path of each file, and where links lead.
func writeListing(w io.Writer, entries []archive.Entry) {
	var out strings.Builder
	files := 0
	size := 0
	for _, e := range entries {
		switch {
		case e.Dir:
			continue
		case e.Link != "":
			fmt.Fprintf(&out, "%8s  %s -> %s\n", "link", cli.PlainText(e.Name), cli.PlainText(e.Link))
		default:
			fmt.Fprintf(&out, "%8d  %s\n", len(e.Content), cli.PlainText(e.Name))
		}
		files++
		size += len(e.Content)
	}
	fmt.Fprintf(w, "%s%8d  bytes in %d files\n", out.String(), size, files)
}
