// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// pseudonyms replaces the texts that identify a cluster: the names of hosts, pods, containers, namespaces, users, and
// images, and addresses, MACs, and GUIDs. Pseudonyms contain numbers in order of first occurrence. They are not hashes,
// because names and addresses can be guessed.
//
// Related values stay related: the vendor's part of a MAC and of the GUIDs that are derived from the MAC, and the
// prefixes of subnets. HCAs, drivers, and handlers keep their names, except for parts of a MAC in a name.
type pseudonyms struct {
	numbers map[string]map[string]int
	first   map[string]byte   // the first bit that followed each prefix of an address
	known   map[kind][]string // the names of the node's containers
	host    string
}

// newPseudonyms returns pseudonyms that know the names of a node's containers.
func newPseudonyms(containers []policy.Container) *pseudonyms {
	s := &pseudonyms{map[string]map[string]int{}, map[string]byte{}, map[kind][]string{}, ""}
	for _, c := range containers {
		for k, name := range map[kind]string{namespace: c.Namespace, pod: c.Pod, container: c.Name} {
			if !slices.Contains(s.known[k], name) {
				s.known[k] = append(s.known[k], name)
			}
		}
	}
	return s
}

// number returns the number of a value within its sort. Numbers start at 1.
func (s *pseudonyms) number(sort, value string) int {
	if s.numbers[sort] == nil {
		s.numbers[sort] = map[string]int{}
	}
	n, met := s.numbers[sort][value]
	if !met {
		n = len(s.numbers[sort]) + 1
		s.numbers[sort][value] = n
	}
	return n
}

func (s *pseudonyms) name(sort, value string) string {
	if value == "" {
		return ""
	}
	return fmt.Sprintf("%s-%d", sort, s.number(sort, value))
}

var sorts = map[kind]string{namespace: "namespace", pod: "pod", container: "container", ruleName: "rule",
	dir: "directory"}

// replace returns the replacement of a text in an answer. Several lines are several texts.
func (s *pseudonyms) replace(k kind, text string) string {
	switch k {
	case namespace, pod, container, ruleName, dir:
		return s.name(sorts[k], text)
	case wholePod:
		of, name, _ := strings.Cut(text, "/")
		return s.name("namespace", of) + "/" + s.name("pod", name)
	case namespaces:
		return s.glob(namespace, text)
	case object:
		return s.object(text)
	case about:
		if key, name, own := strings.Cut(text, "/container."); own && name != "*" {
			return key + "/container." + s.name("container", name)
		}
		return text
	case address:
		if prefix, err := netip.ParsePrefix(text); err == nil {
			return netip.PrefixFrom(s.address(prefix.Addr()), prefix.Bits()).String()
		}
		if a, err := netip.ParseAddr(text); err == nil {
			return s.address(a).String()
		}
		return ""
	}
	return s.text(asIs(k, text))
}

// glob returns the pseudonyms of the names that a glob matches, and a pseudonym of the glob itself, so that the results
// of different globs differ.
func (s *pseudonyms) glob(k kind, glob string) string {
	if strings.Trim(glob, "*") == "" {
		return glob
	}
	var all []string
	for _, name := range s.known[k] {
		if matched, _ := path.Match(glob, name); matched {
			all = append(all, s.name(sorts[k], name))
		}
	}
	return strings.Join(append(all, s.name("no-"+sorts[k], glob)), "\n")
}

// object returns the objects of an entry in the ignore file. For "container ml/* worker", these are the objects with
// the names that the globs match.
func (s *pseudonyms) object(glob string) string {
	words := strings.SplitN(glob, " ", 4)
	if words[0] != "container" || len(words) < 2 || !strings.Contains(words[1], "/") {
		return s.text(glob)
	}
	all := []string{"container"}
	each := func(between, texts string) {
		before := all
		all = nil
		for _, begun := range before {
			for text := range strings.SplitSeq(texts, "\n") {
				all = append(all, begun+between+text)
			}
		}
	}
	ns, name, _ := strings.Cut(words[1], "/")
	each(" ", s.glob(namespace, ns))
	each("/", s.glob(pod, name))
	if len(words) > 2 {
		each(" ", s.glob(container, words[2]))
	}
	if len(words) > 3 { // HCA mlx5_0
		each(" ", words[3])
	}
	return strings.Join(all, "\n")
}

// The forms of MACs and GUIDs in texts, in order of precedence, and the forms of addresses. Sysfs files contain
// versions that look like IPv4 addresses.
const (
	ofHardware = `\b[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5,19}\b` + // a MAC, a GUID, an address of IPoIB
		`|\b[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3}(?:(?::[0-9a-fA-F]{4}){4})?\b` + // a GUID, a GID
		`|\b0x[0-9a-f]{16}\b|\b(?:en|ib|roce|opa|iw|wl)x(?:[0-9a-f]{16}|[0-9a-f]{12})` // in a name
	ofAddresses = `|\b\d{1,3}(?:\.\d{1,3}){3}\b|[0-9a-fA-F:]*::[0-9a-fA-F:]*|(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}`
)

var (
	hardwareForm = regexp.MustCompile(ofHardware)
	anyForm      = regexp.MustCompile(ofHardware + ofAddresses)
	home         = regexp.MustCompile(`/home/([^/\s]+)`)
)

// text replaces these forms, the host's name, and users' names in a text.
func (s *pseudonyms) text(text string) string {
	text = anyForm.ReplaceAllStringFunc(text, s.form)
	if s.host != "" {
		text = strings.ReplaceAll(text, s.host, s.name("host", s.host))
	}
	return home.ReplaceAllStringFunc(text, func(of string) string { return "/home/" + s.name("user", path.Base(of)) })
}

// hardware replaces only MACs and GUIDs.
func (s *pseudonyms) hardware(text string) string {
	return hardwareForm.ReplaceAllStringFunc(text, s.form)
}

// form returns the pseudonym of one of these forms, in the same form.
func (s *pseudonyms) form(of string) string {
	groups := strings.Split(of, ":")
	b, err := hex.DecodeString(strings.Join(groups, ""))
	switch before, digits, named := strings.Cut(of, "x"); {
	case named:
		b, _ = hex.DecodeString(digits) // the forms have such digits
		return before + "x" + hex.EncodeToString(s.octets(b))
	case err == nil && len(b) == len(groups) && len(b) > 1:
		return s.octets(b).String()
	case err == nil && 2*len(groups) == len(b) && len(b) == 16:
		return s.address(netip.AddrFrom16([16]byte(b))).StringExpanded()
	case err == nil && 2*len(groups) == len(b) && len(b) == 8:
		digits := hex.EncodeToString(s.octets(b))
		return digits[:4] + ":" + digits[4:8] + ":" + digits[8:12] + ":" + digits[12:]
	}
	if a, err := netip.ParseAddr(of); err == nil {
		return s.address(a).String()
	}
	return of
}

// octets returns the pseudonym of a MAC, of a GUID, or of an IPoIB address, which ends with a GID. The vendor's part
// and the card's part are each replaced with a number. The two bits for the MAC's type stay the same.
func (s *pseudonyms) octets(b net.HardwareAddr) net.HardwareAddr {
	b = slices.Clone(b)
	switch {
	case len(b) == 20:
		gid := s.address(netip.AddrFrom16([16]byte(b[4:]))).As16()
		return append(b[:4], gid[:]...)
	case len(b) != 6 && len(b) != 8:
		return b
	}
	vendor := b[:3]
	own := b[len(b)-3:]
	middle := b[3 : len(b)-3]
	if slices.Max(b) == 0 || slices.Min(b) == 0xff {
		return b
	}
	if slices.Max(vendor) > 0 {
		bits := vendor[0] & 3
		vendor[0] -= bits
		n := s.number("vendor", string(vendor))
		vendor[0] = 0xac | bits
		vendor[1] = byte(n >> 8)
		vendor[2] = byte(n)
	}
	if m := hex.EncodeToString(middle); m != "" && m != "fffe" && m != "0300" && m != "0000" {
		binary.BigEndian.PutUint16(middle, uint16(0x4000+s.number("middle", m)))
	}
	n := s.number("card", string(own))
	own[0] = 0x10 | byte(n>>16)
	own[1] = byte(n >> 8)
	own[2] = byte(n)
	return b
}

// The first pseudonyms of addresses, which are rarely used in networks.
var (
	firstIPv4 = netip.MustParseAddr("25.18.0.0").As4()
	firstIPv6 = netip.MustParseAddr("2001:db8::").As16()
)

// address returns the pseudonym of an address. The pseudonyms of two addresses share a prefix of the same length as the
// addresses do. Addresses that have the same meaning everywhere are not replaced.
func (s *pseudonyms) address(a netip.Addr) netip.Addr {
	switch {
	case a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.Is4() && a.IsLinkLocalUnicast():
		return a
	case a.Is4():
		b := a.As4()
		return netip.AddrFrom4([4]byte(s.prefix("4", b[:], firstIPv4[:])))
	case a.Is4In6():
		return netip.AddrFrom16(s.address(a.Unmap()).As16())
	}
	b := a.As16()
	if !a.IsLinkLocalUnicast() {
		copy(b[:8], s.prefix("6", b[:8], firstIPv6[:8]))
	}
	copy(b[8:], s.octets(b[8:]))
	return netip.AddrFrom16(b)
}

// prefix replaces an address bit by bit: after each prefix, the first bit that occurs is replaced with the bit of the
// first pseudonym.
func (s *pseudonyms) prefix(family string, b, base []byte) []byte {
	found := make([]byte, len(b))
	way := []byte(family)
	for i := range 8 * len(b) {
		bit := b[i/8] >> (7 - i%8) & 1
		of := base[i/8] >> (7 - i%8) & 1
		first, met := s.first[string(way)]
		if !met {
			s.first[string(way)] = bit
			first = bit
		}
		found[i/8] |= (of ^ bit ^ first) << (7 - i%8)
		way = append(way, '0'+bit)
	}
	return found
}

// without lists files whose content is omitted, because it names the host, a switch, or a card.
var without = []string{"node_desc", "phys_switch_id", "phys_port_id"}

// entry returns a file with pseudonyms. Files that contain versions keep texts that look like addresses.
func (s *pseudonyms) entry(e archive.Entry) archive.Entry {
	name := e.Name
	e.Name = s.hardware(e.Name)
	e.Link = s.hardware(e.Link)
	text := string(e.Content)
	switch base := path.Base(name); {
	case len(e.Content) == 0 || strings.HasPrefix(name, "rdma-spec/"):
		return e
	case slices.Contains(without, base):
		text = ""
	case base == "hostname":
		s.host = strings.TrimSpace(text)
		text = s.name("host", s.host) + "\n"
	case base == "route" || base == "if_inet6":
		text = s.table(text, base == "if_inet6")
	case base == "cgroup" && strings.HasPrefix(name, "proc/"):
		text = ofContainers(text)
	case name == "proc/version":
		text = builtBy.ReplaceAllString(text, "")
	case strings.HasPrefix(name, "sys/"):
		text = s.hardware(text)
	}
	e.Content = []byte(text)
	return e
}

// builtBy matches the user and the host that built the kernel.
var builtBy = regexp.MustCompile(`\([^()\s]+@[^()]+\) `)

// ofContainers removes the names of the control groups of processes outside containers.
func ofContainers(text string) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		if fields := strings.SplitN(line, ":", 3); len(fields) == 3 && !inContainer.MatchString(fields[2]) {
			line = fields[0] + ":" + fields[1] + ":/\n"
		}
		kept.WriteString(line)
	}
	return kept.String()
}

var inContainer = regexp.MustCompile(`kubepods|[0-9a-f]{64}`)

// table replaces the addresses in if_inet6 or in /proc/net/route, where they are in the machine's byte order.
func (s *pseudonyms) table(text string, six bool) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		columns := strings.SplitAfter(line, "\t")
		if six {
			columns = strings.SplitAfterN(line, " ", 2)
		}
		for i, column := range columns {
			digits := strings.TrimSpace(column)
			b, err := hex.DecodeString(digits)
			switch {
			case err != nil:
				continue
			case six && i == 0 && len(b) == 16:
				mapped := s.address(netip.AddrFrom16([16]byte(b))).As16()
				b = mapped[:]
			case !six && (i == 1 || i == 2) && len(b) == 4:
				slices.Reverse(b)
				mapped := s.address(netip.AddrFrom4([4]byte(b))).As4()
				b = mapped[:]
				slices.Reverse(b)
			default:
				continue
			}
			columns[i] = strings.Replace(column, digits, strings.ToUpper(hex.EncodeToString(b)), 1)
			if six {
				columns[i] = strings.ToLower(columns[i])
			}
		}
		kept.WriteString(strings.Join(columns, ""))
	}
	return kept.String()
}
