// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"bytes"
	"encoding/json"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/rdma-spec/rdma-spec/cmd/internal/why"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/docs"
)

// kind is what a text of an answer is.
type kind int

const (
	unlisted  kind = iota // it is not kept
	word                  // of a program, a device, a handler, a resource: as it is
	place                 // a path: as it is
	message               // what a program says, and may quote anything: of its words, those that are known
	choice                // a variable that chooses devices and interfaces: its names
	line                  // of the kernel's log, which was chosen when it was read
	namespace             // these have pseudonyms in an anonymous archive
	namespaces
	pod
	wholePod // NAMESPACE/POD
	container
	address
	object // of the ignore file: a glob with names of pods
	about  // the key of an annotation, which may end with a container's name
	dir    // where plugins meet, with the names of a namespace and a release
	ruleName
)

// fields lists all texts of the answers that an archive keeps, by the answer and the names of JSON on the way. What is
// not listed is left out, and a test fails. "{}" are the keys of a map, and "*" stands for anything.
var fields = []struct {
	of   string
	kind kind
}{
	{"kernel-log lines text", line},
	{"listing containers container namespace", namespace}, {"listing containers container pod", pod},
	{"listing containers container name", container},
	{"listing containers container annotations {}", about}, {"listing containers container annotations *", word},
	{"listing containers container runtimeHandler", word},
	{"listing containers container devices type", word}, {"listing containers scope devices", place},
	{"runtimes runtimes ignored by", place},
	{"runtimes runtimes ignored reason", message},
	{"runtimes runtimes ignored fix", message},
	{"configured features state", word},
	{"configured features differs", place},
	{"configured sideEffects files", place},
	{"configured sideEffects differs", place},
	{"listing containers spec Env *", choice}, {"listing containers inside addresses", address},
	{"listing containers inside linkLocal", address}, {"listing containers inside links addresses", address},
	{"listing containers inside links subnets", address},
	{"ignored object", object}, {"ignored reason", message}, {"policy config rules name", ruleName},
	{"policy config * namespaces", namespaces}, {"policy config rules match namespaces", namespaces},
	{"plugin processes handover", dir},

	{"listing waiting", wholePod}, {"listing containers resources functions resource", word},
	{"listing containers resources functions pci", word}, {"listing containers resources pod resource", word},
	{"listing containers resources pod devices", word}, {"configured features asked *", word}, {"* reason", message},
	{"* fix", message}, {"* state", word}, {"* differs", message}, {"* files", place},
	{"* error", message}, {"* configError", message}, {"* problem", message}, {"* unread", message},
	{"* unknown", message},
	{"* skipped", message}, {"* source", message},

	{"* socket", place}, {"* config", place}, {"* baseSpec", place}, {"* launched", place}, {"* root", place},
	{"* endpoint", place}, {"* path", place}, {"* Path", place}, {"* file", place}, {"* configured", place},
	{"* hostPaths", place}, {"* cdiDirs", place}, {"* directories", place}, {"* hooks", place}, {"* nodes", place},
	{"* libVerbs", place},

	{"* {}", word}, {"* name", word}, {"* version", word}, {"* unit", word}, {"* defaultHandler", word},
	{"* program", word},
	{"* ociVersion", word}, {"* off", word}, {"* required", word}, {"* started", word}, {"* since", word}, {"* at", word},
	{"* tool", word}, {"* feature", word}, {"* kind", word}, {"* check", word}, {"* memlock", word}, {"* ipcLock", word},
	{"* mode", word}, {"* every", word}, {"* names", word}, {"* resources", word}, {"* mofedRuntimeHandlers", word},
	{"* deviceAnnotations", word},
	{"* skipRuntimeHandlers", word}, {"* functions", word}, {"* linkLayers", word}, {"* netdevs", word}, {"* id", word},
	{"* runtimeHandler", word}, {"* type", word}, {"* Bounding", word}, {"* providers *", word}, {"* memlocks", word},
	{"* startable", word}, {"* defaultMemlock", word}, {"* Soft", word}, {"* Hard", word}, {"* soft", word},
	{"* hard", word}, {"* sharedMem", word}, {"* Memlock", word}, {"* limit", word},
}

// kindOf returns what the text at the end of such a way is. The first line of the table counts that matches.
func kindOf(way []string) kind {
	for _, f := range fields {
		if matches(strings.Fields(f.of), way) {
			return f.kind
		}
	}
	return unlisted
}

// matches reports whether names, of which a first "*" stands for any beginning, match a way.
func matches(names, way []string) bool {
	if names[0] == "*" {
		names = names[1:]
		way = way[max(0, len(way)-len(names)):]
	}
	if len(names) != len(way) {
		return false
	}
	for i, name := range names {
		if name != "*" && name != way[i] {
			return false
		}
	}
	return true
}

// encodeAnswer encodes an answer with the texts that are kept of it. as returns what a text becomes.
func encodeAnswer(a node.Answer, as func(kind, string) string) ([]byte, error) {
	encoded, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	var value map[string]any
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber() // an unlimited memlock is no float
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	name := strings.TrimSuffix(a.Name, ".json")
	if text, failed := value["error"].(string); failed {
		value["error"] = as(message, text)
	}
	if answer, there := value["answer"]; there {
		value["answer"] = walk(answer, []string{name}, as)
	}
	return json.MarshalIndent(value, "", "  ")
}

func walk(value any, way []string, as func(kind, string) string) any {
	switch v := value.(type) {
	case string:
		return as(kindOf(way), v)
	case []any:
		all := []any{}
		for _, one := range v {
			switch text := walk(one, way, as); {
			case kindOf(way) == namespaces:
				for one := range strings.SplitSeq(text.(string), "\n") {
					all = append(all, one)
				}
			case kindOf(append(slices.Clone(way), "object")) == object:
				all = append(all, entries(text.(map[string]any))...)
			default:
				all = append(all, text)
			}
		}
		return all
	case map[string]any:
		all := map[string]any{}
		for key, one := range v {
			mapped := key
			if k := kindOf(append(slices.Clone(way), "{}")); k != word {
				mapped = as(k, key)
			}
			all[mapped] = walk(one, append(slices.Clone(way), key), as)
		}
		return all
	}
	return value
}

// entries returns an entry of the ignore file for each object, of which it has a line.
func entries(entry map[string]any) (all []any) {
	objects, _ := entry["object"].(string) // an entry about the node has none
	for one := range strings.SplitSeq(objects, "\n") {
		copied := map[string]any{}
		for key, value := range entry {
			copied[key] = value
		}
		if objects != "" {
			copied["object"] = one
		}
		all = append(all, copied)
	}
	return all
}

// asIs is what a text becomes in an archive with names.
func asIs(k kind, text string) string {
	switch k {
	case unlisted:
		return ""
	case message:
		return knownWords(text)
	case choice:
		return names(text)
	}
	return text
}

// names keeps the items of a list that can be names of devices and interfaces.
func names(list string) string {
	items := strings.Split(list, ",")
	for i, item := range items {
		if !nameForm.MatchString(item) {
			items[i] = "…"
		}
	}
	return strings.Join(items, ",")
}

var nameForm = regexp.MustCompile(`^[=^]*[\w.*-]{0,20}(:\d{1,3})*$`)

// A message keeps numbers, quantities, paths of the system, and the words of the pages about faults and of the tables
// of what programs say. All else that it quotes is left out: "…".
var (
	messageWord = regexp.MustCompile(`[^\s"'` + "`" + `,;:=()\[\]{}<>|]+`)
	plainNumber = regexp.MustCompile(`^\d{1,5}(\.\d{1,5}){0,3}(ms|s|m|h|Ki|Mi|Gi|KiB|MiB|GiB|%)?$`)
	systemPath  = regexp.MustCompile(`^/(etc|run|var|usr|opt|dev|proc|sys|lib|host)(/[\w.@-]{1,40})*/?$`)
)

// vocabulary are the words that messages keep.
var vocabulary = sync.OnceValue(func() map[string]bool {
	all := map[string]bool{}
	for _, text := range append(docs.FaultPages(), why.Texts()...) {
		for _, word := range messageWord.FindAllString(text, -1) {
			all[strings.ToLower(strings.Trim(word, ".*_?!"))] = true
		}
	}
	return all
})

func knownWords(text string) string {
	return messageWord.ReplaceAllStringFunc(text, func(word string) string {
		plain := strings.Trim(word, ".")
		switch {
		case plainNumber.MatchString(plain), vocabulary()[strings.ToLower(plain)] && !strings.ContainsAny(plain, "@"):
		case systemPath.MatchString(plain) && path.Clean(plain) != "/":
		default:
			return "…" + word[len(strings.TrimRight(word, ".")):]
		}
		return word
	})
}
