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

// kind is the kind of a text in an answer.
type kind int

const (
	unlisted  kind = iota // not kept
	word                  // of a program, device, handler, or resource: kept unchanged
	place                 // a path: kept unchanged
	message               // a program's message, which can quote anything: only known words are kept
	choice                // a variable that selects devices and interfaces: the names are kept
	line                  // a line of the kernel log, which was selected when the log was read
	namespace             // this kind and the next ones are replaced with pseudonyms in an anonymous archive
	namespaces
	pod
	wholePod // NAMESPACE/POD
	container
	address
	object // from the ignore file: a glob with names of pods
	about  // the key of an annotation, which can end with a container's name
	dir    // the plugins' handover directory, whose path contains a namespace and a release
	ruleName
)

// fields lists all texts that an archive keeps from the answers. A text is identified by the answer and the JSON names
// on the path to the text. Other texts are omitted, and make a test fail. "{}" means the keys of a map, and "*" means
// any name.
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

// kindOf returns the kind of the text at the end of such a path, from the first matching row of the table.
func kindOf(way []string) kind {
	for _, f := range fields {
		if matches(strings.Fields(f.of), way) {
			return f.kind
		}
	}
	return unlisted
}

// matches reports whether names match a path. If the first name is "*", it matches any beginning.
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

// encodeAnswer encodes an answer with the texts that an archive keeps. The function as returns a text's replacement.
func encodeAnswer(a node.Answer, as func(kind, string) string) ([]byte, error) {
	encoded, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	var value map[string]any
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber() // a float cannot represent an unlimited memlock
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

// entries returns an entry of the ignore file for each line of the entry's objects.
func entries(entry map[string]any) (all []any) {
	objects, _ := entry["object"].(string) // an entry about the node has no object
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

// asIs returns a text's replacement in an archive that is not anonymous.
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

// names keeps the list items that can be names of devices and interfaces.
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

// A message keeps numbers, quantities, system paths, and words from the pages about faults and from the tables of
// programs' messages. All other words are replaced with "…".
var (
	messageWord = regexp.MustCompile(`[^\s"'` + "`" + `,;:=()\[\]{}<>|]+`)
	plainNumber = regexp.MustCompile(`^\d{1,5}(\.\d{1,5}){0,3}(ms|s|m|h|Ki|Mi|Gi|KiB|MiB|GiB|%)?$`)
	systemPath  = regexp.MustCompile(`^/(etc|run|var|usr|opt|dev|proc|sys|lib|host)(/[\w.@-]{1,40})*/?$`)
)

// vocabulary returns the words that messages keep.
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
