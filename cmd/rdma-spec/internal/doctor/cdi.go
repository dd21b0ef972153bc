// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cdi"
)

// QuestionCDI asks for the node's CDI files. The answer is a CDIFiles.
const QuestionCDI Question = "cdi.json"

// CDIFiles are the CDI files of a node, in the order of their priority, and who may use them besides the runtimes of pods.
type CDIFiles struct {
	Files  []cdi.Found `json:"files"`
	Docker *Docker     `json:"docker,omitempty"` // where it is installed
	Podman bool        `json:"podman,omitempty"` // it is installed
}

// Docker is what Docker makes of CDI.
type Docker struct {
	Version string   `json:"version,omitempty"` // "" where it is unknown
	CDI     *bool    `json:"cdi,omitempty"`     // what daemon.json says
	Folders []string `json:"folders,omitempty"` // where it looks for CDI files; empty where it does not say
	Error   string   `json:"error,omitempty"`   // why daemon.json cannot be read
}

// cdiChecks are the checks of CDI files.
func cdiChecks() []Check {
	return []Check{{
		ID: "cdi-files", Family: "cdi", Title: "The CDI files of HCAs are right.",
		Messages: []string{"unresolvable CDI devices"},
		Why:      "A container with such a device does not start, or gets another HCA than it asks for.",
		Asks:     []Question{QuestionCDI}, Look: cdiFiles,
	}, {
		ID: "cdi-on", Family: "cdi", Title: "CDI is on in the runtimes that use the CDI files of HCAs.",
		Messages: []string{`could not select device driver "cdi" with capabilities: []`},
		Why:      "Where it is off, a container with such a device does not start, or starts without the device.",
		Asks:     []Question{QuestionCDI, QuestionRuntimes, QuestionKubelet}, Needs: []string{"runtime-config"}, Look: cdiOn,
	}}
}

// cdiFiles looks at the files of HCAs. Those of other devices are their makers' work.
func cdiFiles(v *View) []Finding {
	var answer CDIFiles
	if err := v.Ask(QuestionCDI, &answer); err != nil {
		return []Finding{unknown("", "The CDI files are unknown: "+err.Error()+".")}
	}
	var found []Finding
	ours := false
	for _, f := range answer.Files {
		if f.Kind != cdi.Kind {
			continue
		}
		ours = true
		if problems := cdiProblems(f); len(problems) > 0 {
			found = append(found, wrong("CDI file "+f.Path, sentence(problems), fmt.Sprintf(
				"rdma-spec configure cdi, or write the file again: $(sed -n 's/^# Made with: //p' %s) --output %s", f.Path, f.Path)))
		}
	}
	if !ours {
		return notApplied("The node has no CDI file of HCAs.")
	}
	return found
}

// cdiProblems returns what is wrong with a file: with all of it, else with its devices.
func cdiProblems(f cdi.Found) (problems []string) {
	if f.Problem != "" {
		return []string{f.Problem}
	}
	for _, d := range f.Devices {
		if d.Problem != "" {
			problems = append(problems, strings.TrimPrefix(d.Name, cdi.Kind+"=")+": "+d.Problem)
		}
	}
	return problems
}

// cdiOn looks at the runtimes that can use the CDI files of HCAs. It is a fault where nothing else can be meant to use them: Podman always
// has CDI, and Docker's containers are not the kubelet's.
func cdiOn(v *View) []Finding {
	var answer CDIFiles
	if err := v.Ask(QuestionCDI, &answer); err != nil {
		return []Finding{unknown("", "The CDI files are unknown: "+err.Error()+".")}
	}
	files := slices.DeleteFunc(slices.Clone(answer.Files), func(f cdi.Found) bool { return !f.Ours() })
	if len(files) == 0 {
		return notApplied("The node has no CDI file of HCAs.")
	}
	var kubelet Kubelet
	var runtimes Runtimes
	pods := v.Ask(QuestionKubelet, &kubelet) == nil && kubelet.PID > 0
	_ = v.Ask(QuestionRuntimes, &runtimes) // runtime-config says so
	var found []Finding
	tell := func(fault bool, object, text, cure string) {
		switch {
		case text == "":
		case fault:
			found = append(found, wrong(object, text, cure))
		default:
			found = append(found, unknown(object, text+" If its containers use CDI devices of HCAs: "+cure))
		}
	}
	for _, r := range runtimes.forPods() {
		if r.Name == runtimeContainerd && r.Known {
			text, cure := r.cdi(files)
			tell(pods && !answer.Podman && answer.Docker == nil, r.object(), text, cure)
		}
	}
	if answer.Docker != nil {
		text, cure := answer.Docker.lacks(files)
		tell(!pods && !answer.Podman, "runtime docker", text, cure)
	}
	return found
}

// cdi returns what keeps a containerd from the files, and its cure; nothing where nothing does.
func (r Runtime) cdi(files []cdi.Found) (text, cure string) {
	section := "io.containerd.cri.v1.runtime"
	if olderThan(r.Version, "2.0") {
		section = "io.containerd.grpc.v1.cri"
	}
	set := func(what string) string {
		return fmt.Sprintf("Set %s in [plugins.'%s'] of %s, and then: %s", what, section, r.Config, r.restart())
	}
	if r.CDIOff {
		return "CDI is off: enable_cdi = false.", set("enable_cdi = true")
	}
	return unreadFolder(files, r.CDIFolders), set(`cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]`)
}

// lacks returns what keeps Docker from the files, and its cure; nothing where nothing does.
func (d Docker) lacks(files []cdi.Found) (text, cure string) {
	const file, restart = "/etc/docker/daemon.json", ", and then: systemctl restart docker"
	switch {
	case d.Error != "":
		return fmt.Sprintf("%s cannot be read: %s.", file, d.Error), "Correct " + file + restart
	case olderThan(d.Version, "25.0"):
		return fmt.Sprintf("Docker %s has no CDI.", d.Version), "Install Docker 28.2 or later"
	case d.CDI != nil && !*d.CDI, d.CDI == nil && olderThan(d.Version, "28.2"):
		return "CDI is off.", `Set "features": {"cdi": true} in ` + file + restart
	}
	return unreadFolder(files, d.Folders), `Set "cdi-spec-dirs": ["/etc/cdi", "/var/run/cdi"] in ` + file + restart
}

// unreadFolder returns what is wrong where a runtime that looks into these folders does not find a file. None are the default ones.
func unreadFolder(files []cdi.Found, folders []string) string {
	read := func(folder string) bool {
		return slices.ContainsFunc(folders, func(f string) bool { return SamePath(f, folder) })
	}
	for _, f := range files {
		if len(folders) > 0 && !read(path.Dir(f.Path)) {
			return fmt.Sprintf("It reads CDI files in %s, and not %s.", strings.Join(folders, ", "), f.Path)
		}
	}
	return ""
}
