// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// kernelChecks are about what the kernel's log has.
func kernelChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "hca-errors", Family: "kernel log", Title: "The kernel log and PCIe report no HCA errors.",
		Impact: "If an HCA fails intermittently, jobs slow down or stop.",
		Reads:  []string{pciDevices + "*/aer_dev_fatal"}, Needs: []string{"hca-answers"}, Look: hcaErrors,
	}, {
		ID: "module-symbols", Family: "kernel log",
		Title: "The kernel loaded all RDMA modules.",
		Impact: "The kernel does not load a module that was built against a different ib_core, so the module's features " +
			"are missing.",
		Reads: append([]string{"sys/module/*"}, dmaBUFReads...), Look: withLog(refusedModules),
	}, {
		ID: "security-denials", Family: "kernel log",
		Title:  "SELinux and AppArmor have not denied access to RDMA in the last hour.",
		Impact: "The security module denies access that the device's mode and the container's capabilities allow.",
		Look:   withLog(Denials),
	}}
}

// withLog looks at the kernel's log.
func withLog(look func(*doctor.View, node.KernelLog) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		log, err := v.KernelLog()
		if err != nil { // which hca-errors says
			return []doctor.Finding{{Status: doctor.Skipped, Text: "It depends on hca-errors.", Root: doctor.Unknown}}
		}
		return look(v, log)
	}
}

// recent is how long a line of the log is no history, in seconds.
const recent = float64(60 * 60)

const ofCable = "Reseat or replace the cable or the module, on both ends. Then check: "

// trouble is what drivers log of an HCA that is in trouble.
type trouble struct {
	lines *regexp.Regexp
	what  string
	least int            // how many within an hour are a fault
	ends  *regexp.Regexp // what ends it, nil for what goes by itself
	fix   func(device string, t hca.Tools) string
}

// count returns how often an HCA had it, how often within the last hour, and the last line of it. now is how many count
// now: those of the last hour and, on a port without a link, all of its cable, but for those that something has ended.
func (t trouble) count(lines []node.KernelLine, h hca.HCA, at float64) (all, within, now int, last string) {
	lasts := false
	for _, line := range lines {
		switch recently := at-line.At < recent; {
		case !isAbout(line.Text, h):
		case !t.lines.MatchString(line.Text):
			lasts = false
			if t.least == 1 {
				now = 0
			}
		case !lasts: // else a port without a cable was turned on again
			all++
			last = line.Text
			lasts = t.least > 1
			if recently {
				within++
			}
			if recently || t.least == 1 && t.ends != nil && !h.Active() {
				now++
			}
		}
	}
	return all, within, now, last
}

// linkUp is what drivers log of a port that gets its link, and plugged of a module that is taken out or put in.
var (
	linkUp  = regexp.MustCompile(`(?i)\blink (is )?up\b|link becomes ready`)
	plugged = regexp.MustCompile(`(?i)cable (un)?plugged`)
)

// troubles are the first that a line matches. A module that is not there is none: "Cable unplugged".
var troubles = []trouble{
	{regexp.MustCompile(`(?i)firmware internal error|health compromised|irisc not responding|unrecoverable hardware ` +
		`error|fatal error \d+ detected|internal error detected|timeout\. Will cause a leak of a command resource|` +
		`firmware fatal (condition|reset)`), // the last is Broadcom's
		"Its firmware failed", 1, nil, func(device string, _ hca.Tools) string {
			return "Drain the node, install the latest firmware for the card, and restart the node, which stops all its pods " +
				"(see: rdma-spec status). If the card fails again, replace it. For the card's messages, " +
				"see: dmesg | grep " + device
		}},
	{regexp.MustCompile(`(?i)cable error|module .*(high temperature|bad or shorted|power budget exceeded)`),
		"Its cable or module has an error", 1, plugged, func(_ string, t hca.Tools) string { return ofCable + t.Module }},
	{regexp.MustCompile(`(?i)high temperature|over.?temperature|temperature (warning|critical)`),
		"It is too hot", 1, nil, func(device string, t hca.Tools) string {
			return "Check the airflow and the fans. For the temperature, see: " + cmp.Or(t.Heat, "dmesg | grep "+device)
		}},
	{regexp.MustCompile(`CREATE_MKEY.*(limits exceeded|no resources)`),
		"It has no room for more memory regions", 1, nil, func(device string, _ hca.Tools) string {
			return "Let fewer processes use the HCA, or reduce the number of regions that they register: use huge pages, " +
				"and remove UCX_RCACHE_ENABLE=n. To see how many regions each process has registered: rdma resource show mr; " +
				"dmesg | grep " + device
		}},
	{regexp.MustCompile(`PCIe Bus Error: severity=Uncorrect|AER: Uncorrect`),
		"It has uncorrected PCIe errors", 1, nil, func(device string, _ hca.Tools) string {
			return "Reseat the card, or try another slot. Then check: lspci -vvs " + device
		}},
	{regexp.MustCompile(`(?i)\blink (is )?down\b`), "Its port keeps losing its link", 3, linkUp,
		func(_ string, t hca.Tools) string { return ofCable + t.Errors }},
}

// known are the drivers whose words the troubles have. What another driver logs of a sick HCA is not known.
var known = []string{"mlx4_core", "mlx5_core", "mlx5_core.sf", "bnxt_en", "bnxt_re"}

// unknownDrivers tells which drivers of cards are not among them.
func unknownDrivers(hcas []hca.HCA) (found []doctor.Finding) {
	of := map[string][]string{}
	for _, h := range hcas {
		if h.PCI != "" && h.Driver != "" && !slices.Contains(known, h.Driver) {
			of[h.Driver] = append(of[h.Driver], h.Name)
		}
	}
	for _, driver := range slices.Sorted(maps.Keys(of)) {
		found = append(found, doctor.Unsure("driver "+driver, fmt.Sprintf("The doctor does not recognize this driver's "+
			"error messages about %s. Check: dmesg | grep %s", strings.Join(of[driver], ", "), driver)))
	}
	return found
}

// isAbout reports whether a line names the PCI device of an HCA, or no PCI device but the HCA or a netdev of it.
// Netdevs are renamed: what one is called now may have been another one's name.
func isAbout(line string, h hca.HCA) bool {
	names := []string{h.Name}
	for _, p := range h.Ports {
		names = append(names, p.Netdevs...)
	}
	named := false
	another := false
	for word := range strings.FieldsSeq(line) {
		word = strings.TrimRight(word, ":,;")
		switch {
		case word == "":
		case word == h.PCI:
			return true
		case pciForm.MatchString(word):
			another = true
		case slices.Contains(names, word):
			named = true
		}
	}
	return named && !another
}

// hcaErrors finds HCAs whose drivers log trouble. What is over is told.
func hcaErrors(v *doctor.View) []doctor.Finding {
	log, failed := v.KernelLog()
	of := make([][]node.KernelLine, len(troubles))
	for _, line := range log.Lines {
		i := slices.IndexFunc(troubles, func(t trouble) bool {
			return t.lines.MatchString(line.Text) || t.ends != nil && t.ends.MatchString(line.Text)
		})
		if i >= 0 {
			of[i] = append(of[i], line)
		}
	}
	ofOne := func(h hca.HCA) (found []doctor.Finding) {
		counts := doctor.Attribute(v, pciDevices+h.PCI+"/aer_dev_fatal") // none of an HCA that is on no card
		if _, count, _ := strings.Cut(counts, "TOTAL_ERR_FATAL "); count != "" && count != "0" {
			found = append(found, doctor.Fault(object(h), "Fatal PCIe errors since the node started: "+count+".",
				"Reseat the card, or try another slot. Then check: lspci -vvs "+h.PCI))
		}
		port := hca.Port{Number: 1}
		if len(h.Ports) > 0 {
			port = h.Ports[0]
		}
		for i, t := range troubles {
			if t.least > 1 && h.Function != hca.FunctionPhysical { // pods that use it in turn turn it on and off
				continue
			}
			all, within, now, last := t.count(of[i], h, log.Now)
			f := doctor.Fault(object(h), fmt.Sprintf("%s: %s in the last hour, %s in the whole log; latest: "+
				"%s", t.what, times(within), times(all), last), t.fix(cmp.Or(h.PCI, h.Name), h.Tools(port)))
			if now < t.least {
				f.Status = doctor.OK
				f.Fix = ""
			}
			if all > 0 {
				found = append(found, f)
			}
		}
		return found
	}
	found := ofHCAs(v, func(hcas []hca.HCA) []doctor.Finding {
		return append(doctor.Each(hcas, ofOne), unknownDrivers(hcas)...)
	})
	if failed != nil {
		found = append(found, doctor.Unsure("", fmt.Sprintf("The kernel's log cannot be read: %v.", failed)))
	}
	return found
}

var (
	// refusedModule is a module that was built for another version of a symbol, or for one that no module has.
	refusedModule = regexp.MustCompile(
		`(?:^|\s)([a-z0-9_]+): (disagrees about version of|Unknown) symbol ([A-Za-z0-9_]+)`)
	// ofRDMA are names of RDMA's modules, and of what they give to others.
	ofRDMA = regexp.MustCompile(`\b(ib|iw|mlx[45]?)_|rdma|peermem|\b(efa|bnxt_re|hfi1|siw)\b`)
)

// refusedModules finds modules of RDMA that the kernel refused and that are still not loaded.
func refusedModules(v *doctor.View, log node.KernelLog) (found []doctor.Finding) {
	seen := map[string]bool{}
	for _, line := range log.Lines {
		refused := refusedModule.FindStringSubmatch(line.Text)
		if refused == nil || seen[refused[1]] || !ofRDMA.MatchString(refused[1]+" "+refused[3]) {
			continue
		}
		seen[refused[1]] = true
		if loaded, err := v.Exists("sys/module/" + refused[1]); loaded || err != nil {
			continue
		}
		fix := "Install OFED or DOCA, reinstall the module's package, and then run: modprobe " + refused[1]
		if refused[1] == "nvidia_peermem" {
			if _, serves := dmaBUF(v); serves {
				continue // nobody needs it
			}
			fix = "If neither OFED nor DOCA is installed, install one of them. Then rebuild the GPU driver (with the GPU " +
				"Operator, delete the node's driver pod), and run: modprobe nvidia_peermem"
		}
		text := "it was built for a different version of " + refused[3] + "."
		if refused[2] == "Unknown" {
			text = "no loaded module provides " + refused[3] + "."
			if strings.Contains(refused[3], "peer_memory") {
				text += " OFED and DOCA add this symbol to ib_core. The in-tree ib_core of most kernels does not have it."
			}
		}
		found = append(found, doctor.Fault("module "+refused[1], "The kernel refused it: "+text, fix))
	}
	return found
}

// denials are of devices, and of the capability where a container asks for it: other programs go on without it.
// notDenied is what SELinux allows and logs, and what programs of the node are denied.
var (
	denials = regexp.MustCompile(`(?i)(avc:\s+denied|apparmor="DENIED").*(infiniband|uverbs|rdma_cm)|` +
		`apparmor="DENIED".*ipc_lock|avc:\s+denied.*ipc_lock.*scontext=\S*(container|svirt)`)
	notDenied = regexp.MustCompile(`permissive=1|profile="(/|snap\.)`)
)

// Denials finds what a security module denied. Older denials do not count, so that the finding goes when the cause
// does.
func Denials(_ *doctor.View, log node.KernelLog) []doctor.Finding {
	last := ""
	count := 0
	for _, line := range log.Lines {
		if log.Now-line.At < recent && denials.MatchString(line.Text) && !notDenied.MatchString(line.Text) {
			last = line.Text
			count++
		}
	}
	if count == 0 {
		return nil
	}
	boolean := "container_use_devices"
	gives := "devices"
	if strings.Contains(last, "ipc_lock") {
		boolean = "virt_sandbox_use_all_caps"
		gives = "capabilities"
	}
	fix := fmt.Sprintf("If the container should have access, run: setsebool -P %s on. "+
		"This lets all containers on the node use the %s that the runtime gives them (see: getsebool %[1]s)", boolean, gives)
	if strings.Contains(strings.ToLower(last), "apparmor") {
		fix = "Set the container's securityContext.appArmorProfile.type to Unconfined, or allow the access in the profile."
	}
	const most = 200
	return []doctor.Finding{doctor.Fault("", fmt.Sprintf("%s; latest: %s",
		cli.Counted(count, "denial", "denials"), last[:min(len(last), most)]), fix)}
}
