// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sbom writes the bill of materials of Go programs as SPDX 2.3: every module that the linker has put into them.
package sbom

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// Program is a Go program that was built.
type Program struct {
	Name    string // as in linux/arm64/nri-rdma
	Content []byte
}

const home = "https://github.com/rdma-spec/rdma-spec"

// Write returns the document for the programs of a version. The same programs are always the same bytes.
func Write(programs []Program, version string, created time.Time) ([]byte, error) {
	doc := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName: "rdma-spec " + version,
		CreationInfo: &spdx.CreationInfo{
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "rdma-spec-release"}, {CreatorType: "Organization",
				Creator: "The rdma-spec Authors"}},
			Created: created.UTC().Format(time.RFC3339),
		},
	}
	relate := func(a common.ElementID, relation string, b common.ElementID) {
		doc.Relationships = append(doc.Relationships, &spdx.Relationship{
			RefA: common.MakeDocElementID("", string(a)), RefB: common.MakeDocElementID("", string(b)), Relationship: relation,
		})
	}
	modules, sums := map[common.ElementID]*spdx.Package{}, sha256.New()
	for _, p := range programs {
		info, err := buildinfo.Read(bytes.NewReader(p.Content))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		sum := sha256.Sum256(p.Content)
		sums.Write(sum[:])
		program := &spdx.Package{
			PackageName: p.Name, PackageSPDXIdentifier: id("Program", p.Name), PackageVersion: version, PackageFileName: p.Name,
			PackageDownloadLocation: home, PrimaryPackagePurpose: "APPLICATION",
			PackageLicenseConcluded: "Apache-2.0", PackageLicenseDeclared: "Apache-2.0",
			PackageCopyrightText: "The rdma-spec Authors",
			PackageChecksums:     []common.Checksum{{Algorithm: common.SHA256, Value: hex.EncodeToString(sum[:])}},
		}
		doc.Packages = append(doc.Packages, program)
		relate("DOCUMENT", common.TypeRelationshipDescribe, program.PackageSPDXIdentifier)
		for _, m := range linked(info) {
			pkg := module(m)
			modules[pkg.PackageSPDXIdentifier] = pkg
			relate(program.PackageSPDXIdentifier, common.TypeRelationshipContains, pkg.PackageSPDXIdentifier)
		}
	}
	doc.DocumentNamespace = home + "/spdx/" + hex.EncodeToString(sums.Sum(nil))
	doc.Packages = slices.AppendSeq(doc.Packages, maps.Values(modules))
	slices.SortFunc(doc.Packages,
		func(a, b *spdx.Package) int { return cmp.Compare(a.PackageSPDXIdentifier, b.PackageSPDXIdentifier) })
	var out bytes.Buffer
	err := spdxjson.Write(doc, &out, spdxjson.Indent("  "), spdxjson.EscapeHTML(false))
	return out.Bytes(), err
}

// linked returns the modules in a program, and Go's standard library.
func linked(info *debug.BuildInfo) []debug.Module {
	all := []debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		all = append(all, *m)
	}
	return all
}

func module(m debug.Module) *spdx.Package {
	pkg := &spdx.Package{
		PackageName: m.Path, PackageSPDXIdentifier: id("Module", m.Path, m.Version), PackageVersion: m.Version,
		PackageDownloadLocation: "https://proxy.golang.org/" + m.Path + "/@v/" + m.Version + ".zip",
		PrimaryPackagePurpose:   "LIBRARY",
		PackageLicenseConcluded: "NOASSERTION", PackageLicenseDeclared: "NOASSERTION", PackageCopyrightText: "NOASSERTION",
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: "pkg:golang/" +
				m.Path + "@" + m.Version,
		}},
	}
	if m.Path == "stdlib" {
		pkg.PackageDownloadLocation = "https://go.dev/dl/go" + m.Version + ".src.tar.gz"
	}
	return pkg
}

// id makes an identifier of words: letters, digits, dots and dashes.
func id(words ...string) common.ElementID {
	return common.ElementID(regexp.MustCompile(`[^A-Za-z0-9.-]+`).ReplaceAllString(strings.Join(words, "-"), "-"))
}
