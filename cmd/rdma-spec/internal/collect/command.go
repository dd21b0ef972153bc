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

// Command is rdma-spec collect, which copies the files that the checks read.
func Command(checks []doctor.Check) *cobra.Command {
	o := collectOptions{checks: checks}
	cmd := &cobra.Command{
		Use:   "collect",
		Short: "Write a support bundle for this node",
		Long: `Write a support bundle: a tar.gz file with the data that the devices, status, and doctor commands
read on this node. The file contains the limits and capabilities of processes, the container
runtime settings that affect RDMA, and information from sysfs about HCAs and PCI devices. The file
also contains the kernel log lines about RDMA, and the responses of the runtimes and the kubelet.
With --root FILE.tar.gz, the devices, status, and doctor commands report the same results on
another machine.

The support bundle contains no configuration files and no command-line arguments. The only
environment variables in the support bundle are NCCL_IB_HCA, NCCL_IB_GID_INDEX, NCCL_SOCKET_IFNAME,
NVIDIA_MOFED, and UCX_NET_DEVICES. For NVIDIA_VISIBLE_DEVICES and HABANA_VISIBLE_DEVICES, the
support bundle records only whether the variable requests all, some, or no accelerators. Error
messages are redacted. The support bundle contains addresses, MACs, GUIDs, and the names of hosts,
pods, and namespaces. --anonymize replaces all of these with numbered pseudonyms, which do not
affect the faults that the doctor command finds in the support bundle.

Before the command writes the support bundle, it prints the paths and sizes of all files to
standard error. With --list, the command lists the files and writes nothing. Only the owner can
read the file that --to writes.

If the command cannot read a file within 2 seconds, or if a daemon does not respond within 10
seconds, the command reports the file or the response as missing.

The exit status is 0 if the support bundle is written, even if files are missing, and 3 if the
support bundle cannot be created or written.`,
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
	cli.AddFileFlag(f, &o.to, "write the support bundle atomically to a `FILE` with mode 0600, instead of to standard "+
		"output")
	f.BoolVar(&o.anonymize, "anonymize", false,
		"replace host, pod, namespace, and user names, IP and MAC addresses, and GUIDs with numbered pseudonyms")
	f.BoolVar(&o.list, "list", false,
		"list the files that the support bundle would contain, without writing the bundle")
	cli.AddDurationFlag(f, &o.Timeout, "timeout", node.Daemons,
		"timeout for all daemons together; the timeout for each file is one fifth of this value")
	o.AddFlags(f)
	return cmd
}

// alwaysCollected are files that the doctor's checks do not read: files that the devices and status commands read, and
// files that a reader of the support bundle always needs.
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
	if info, err := os.Stat(o.to); err == nil && info.Mode().IsRegular() { // an existing file would keep its mode
		if err := os.Chmod(o.to, 0o600); err != nil {
			return fmt.Errorf("cannot write %s: %w", o.to, err)
		}
	}
	return atomicfile.Write(o.to, text.Bytes(), 0o600)
}

// patterns returns the patterns of the files to copy. Many checks read the same files, and a GID table has thousands of
// them, so each pattern is contained only once.
func (o collectOptions) patterns() []string {
	all := slices.Concat(node.Inventory, alwaysCollected)
	for _, c := range o.checks {
		all = append(all, c.Reads...)
	}
	all = append(all, process.VerbsFiles(o.Root, "[0-9]*")...)
	known := map[string]bool{}
	return slices.DeleteFunc(all, func(pattern string) bool {
		again := known[pattern]
		known[pattern] = true
		return again
	})
}

// collect returns the archive's entries, sorted by name, and the missing files.
func (o collectOptions) collect(ctx context.Context, stderr io.Writer) (entries []archive.Entry, missing []string,
	err error) {
	o.Inside = true
	o.Keep = true
	s, err := node.Open(o.Options)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = s.Close() }() // it was only read
	copied, missing, err := Take(ctx, s.Files, o.Each(), o.patterns())
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
		listing, _ := s.Listing() // without the listing, no container is named
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

// managers returns the files that show which HCAs manage NVSwitches. A file contains only the relevant word of the
// HCA's vital product data, because the data also contains serial numbers.
func managers(s *node.Snapshot) map[string]archive.Entry {
	all := map[string]archive.Entry{}
	inventory, err := s.HCAs()
	if err != nil {
		return all // Take returns the files that it could read
	}
	for _, h := range inventory.HCAs {
		if h.Manages == hca.NVSwitches {
			name := path.Join("sys/class/infiniband", h.Bus(), hca.ProductData)
			all[name] = archive.Entry{Name: name, Content: []byte(hca.ManagesNVSwitches)}
		}
	}
	return all
}

// versionFile contains the version of the rdma-spec that wrote the archive.
const versionFile = "rdma-spec/version"

// withoutEmptyGIDs omits the empty entries of GID tables, which have up to 1024 entries. It keeps the first empty entry
// of each table, to show that the table is not full.
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

// writeListing lists an archive's files with their sizes and paths, and its links with their targets.
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
