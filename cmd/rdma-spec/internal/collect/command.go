// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/atomicfile"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
)

// collectOptions are the flags of `rdma-spec collect`.
type collectOptions struct {
	node.Options
	to     string
	list   bool
	checks []doctor.Check
}

// Command is rdma-spec collect, which copies what the checks read.
func Command(checks []doctor.Check) *cobra.Command {
	o := collectOptions{checks: checks}
	cmd := &cobra.Command{
		Use:   "collect",
		Short: "Copy what rdma-spec reads of this node into an archive",
		Long: `Copy what devices, status, and doctor read of this node into a tar.gz: HCAs and PCI devices in
sysfs, limits and capabilities of processes, what the configuration of the container runtimes
means for RDMA, the kernel log's lines about RDMA, and the answers of the runtimes and the
kubelet. With --root FILE.tar.gz these commands report elsewhere what they report here.

The archive has no configuration file, and no environment variable but NCCL_IB_HCA,
NCCL_IB_GID_INDEX, NCCL_SOCKET_IFNAME and UCX_NET_DEVICES. Where an error quotes a secret, the
rest of its line is left out. The paths and sizes of all files go to standard error before the
archive is written; --list only lists them. Nobody but the owner can read the file of --to.

A file that cannot be read, or that does not answer within 2 seconds, is reported as missing.

The exit status is 0 if the archive is written, even if files are missing, and 3 if it cannot
be made or written.`,
		Example: `  rdma-spec collect --to node.tar.gz
  rdma-spec collect --list
  rdma-spec doctor --root node.tar.gz`,
		GroupID: cli.GroupNode,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	cli.AddFileFlag(f, &o.to, "write the archive to a `FILE` instead of standard output: atomically, with mode 0600")
	f.BoolVar(&o.list, "list", false, "only list what the archive would have")
	f.DurationVar(&o.Patience, "patience", node.Patience,
		"how long a file or an answer may take before it is missing; longer for a slow node")
	o.AddFlags(f)
	return cmd
}

// alwaysCollected are files that commands read beside the checks of the doctor: devices and status, and what a reader
// wants to know of a node in any case.
var alwaysCollected = []string{
	"sys/class/infiniband/*/ports/*/gids/*",
	"sys/class/infiniband/*/device/../numa_node", "sys/dev/char/*",
	"proc/[0-9]*/cgroup", "proc/[0-9]*/limits", "proc/[0-9]*/status", "proc/[0-9]*/uid_map",
	"etc/os-release", "proc/version", "proc/modules", "proc/sys/kernel/hostname", "rdma-spec/version",
}

func (o collectOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if o.to == "" && !o.list && cli.IsTerminal(stdout) {
		return cli.Usage(errors.New("the archive does not go to a terminal: name a file with --to, or list its content " +
			"with --list"))
	}
	entries, missing, err := o.collect(ctx)
	if err != nil {
		return err
	}
	listing := stderr
	if o.list {
		listing = stdout
	}
	if err := writeListing(listing, entries); err != nil {
		return err
	}
	cli.WriteNotes(stderr, missing)
	if o.list {
		return nil
	}
	var text bytes.Buffer
	if err := archive.Write(&text, entries); err != nil {
		return fmt.Errorf("the archive cannot be made: %w", err)
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

// collect returns what the archive has, and what it misses.
func (o collectOptions) collect(ctx context.Context) (entries []archive.Entry, missing []string, err error) {
	patterns := slices.Concat(node.Inventory, alwaysCollected)
	for _, c := range o.checks {
		patterns = append(patterns, c.Reads...)
	}
	o.Inside, o.Keep = true, true
	s, err := node.Open(o.Options)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = s.Close() }() // it was only read
	copied, err := Take(ctx, o.Root, o.Patience, patterns)
	if err != nil {
		return nil, nil, err
	}
	copied.Entries = withoutEmptyGIDs(copied.Entries)
	attributes, err := Take(ctx, o.Root, o.Patience, gidAttributes(copied.Entries))
	if err != nil {
		return nil, nil, err
	}
	entries, missing = slices.Concat(copied.Entries, attributes.Entries), slices.Concat(copied.Missing, attributes.Missing)
	for _, a := range s.Answers() {
		e, err := answerEntry(a)
		if err != nil {
			return nil, nil, err
		}
		entries = append(entries, e)
	}
	if !slices.ContainsFunc(entries, func(e archive.Entry) bool { return e.Name == "rdma-spec/version" }) {
		entries = append(entries, archive.Entry{Name: "rdma-spec/version", Content: []byte(cli.Version + "\n")})
	}
	slices.SortFunc(entries, func(a, b archive.Entry) int { return strings.Compare(a.Name, b.Name) })
	entries = slices.CompactFunc(entries, func(a, b archive.Entry) bool { return a.Name == b.Name })
	return entries, missing, nil
}

// withoutEmptyGIDs leaves out the empty places of tables of GIDs, which have up to 1024: all but the first one of a
// table, which shows that the table is not full.
func withoutEmptyGIDs(entries []archive.Entry) []archive.Entry {
	shown := map[string]bool{}
	return slices.DeleteFunc(entries, func(e archive.Entry) bool {
		folder, _ := path.Split(e.Name)
		if !strings.HasSuffix(folder, "/gids/") || bytes.ContainsAny(e.Content, "123456789abcdef") {
			return false
		}
		superfluous := shown[folder]
		shown[folder] = true
		return superfluous
	})
}

// gidAttributes returns the files with the attributes of the GIDs that were copied.
func gidAttributes(entries []archive.Entry) (files []string) {
	for _, e := range entries {
		folder, index := path.Split(e.Name)
		if port, isGID := strings.CutSuffix(folder, "/gids/"); isGID && bytes.ContainsAny(e.Content, "123456789abcdef") {
			files = append(files, path.Join(port, "gid_attrs/types", index), path.Join(port, "gid_attrs/ndevs", index))
		}
	}
	return files
}

// answerEntry is the file with an answer, without its secrets.
func answerEntry(a node.Answer) (archive.Entry, error) {
	text, err := withoutSecrets(a)
	if err != nil {
		return archive.Entry{}, fmt.Errorf("the answer about %s cannot be kept: %w", a.Name, err)
	}
	return archive.Entry{Name: path.Join(node.AnswersFolder, a.Name), Content: text}, nil
}

// writeListing lists what an archive has: the size and the path of each file, and where links lead.
func writeListing(w io.Writer, entries []archive.Entry) error {
	var out bytes.Buffer
	files, size := 0, 0
	for _, e := range entries {
		switch {
		case e.Folder:
			continue
		case e.Link != "":
			fmt.Fprintf(&out, "%8s  %s -> %s\n", "link", quotedPath(e.Name), quotedPath(e.Link))
		default:
			fmt.Fprintf(&out, "%8d  %s\n", len(e.Content), quotedPath(e.Name))
		}
		files++
		size += len(e.Content)
	}
	fmt.Fprintf(&out, "%8d  bytes in %d files\n", size, files)
	_, err := w.Write(out.Bytes())
	return err
}

// quotedPath makes a path fit for a terminal.
func quotedPath(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}
