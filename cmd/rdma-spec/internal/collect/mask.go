// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"bytes"
	"encoding/base64"
	"path"
	"regexp"
	"strings"
)

// mask stands for each byte of a secret. The text keeps its length and its lines, so that what a program says of a place in it stays true.
const mask = 'x'

// masked returns the content of a file without secrets. The kernel's files have none that are copied.
func masked(name string, text []byte) []byte {
	for _, folder := range []string{"sys/", "dev/"} {
		if strings.HasPrefix(name, folder) {
			return text
		}
	}
	if kernels, _ := path.Match("proc/*/*", name); kernels {
		return text
	}
	return Mask(text)
}

// secretKey matches keys whose values are secrets, or environment variables, which often are: in registries' credentials, services'
// units, OCI specs, kubeconfigs, and runtimes' configurations.
var secretKey = regexp.MustCompile(`(?i)(passw(or)?d|passphrase|secret|token|credential|(private|api|client|tls|ssh)[-_]?key|key[-_]data|cookie)` +
	`|^(auths?|authorization|headers?|envs?|environ(ment)?|default_env|conmon_env)$`)

var (
	// key is a key in TOML, JSON, YAML, or a unit, with the sign behind it.
	key = regexp.MustCompile(`(?:"([^"\\\n]*)"|'([^'\n]*)'|([A-Za-z0-9_.\-]+))[ \t]*([:=])[ \t]*`)
	// table is the header of a table in TOML, with the last part of its name.
	table = regexp.MustCompile(`(?m)^[ \t]*\[+(?:[^\n]*\.)?["']?([A-Za-z0-9_\-]+)["']?\]+[ \t]*(?:#[^\n]*)?$`)
	// userInfo is a user with a password in a URL.
	userInfo = regexp.MustCompile(`://([^/@\s"']+)@`)
	// privateKey is a key in PEM.
	privateKey = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----(.*?)(?:-----END|$)`)
	// encodedPEM is PEM in base64, with the lines below it that have nothing else.
	encodedPEM = regexp.MustCompile(`(?m)LS0tLS1CRUdJTi[A-Za-z0-9+/]*=*(?:[ \t]*\r?\n[ \t]*[A-Za-z0-9+/]{4,}=*[ \t]*$)*`)
	// plain is the value of a TOML or JSON key that is not text.
	plain  = regexp.MustCompile(`^(?:true|false|null)\b`)
	number = regexp.MustCompile(`^(-?[0-9][0-9.eE+-]*)[ \t]*(?:[,}\]\r\n#]|$)`)
)

// Mask returns a text, of whatever format, with its secrets masked. Its length and its lines stay.
func Mask(text []byte) []byte {
	m := masker{bytes.Clone(text)}
	for _, found := range userInfo.FindAllSubmatchIndex(text, -1) {
		m.all(found[2], found[3])
	}
	for _, found := range privateKey.FindAllSubmatchIndex(text, -1) {
		m.all(found[2], found[3])
	}
	for _, found := range encodedPEM.FindAllIndex(text, -1) {
		if isPrivateKey(text[found[0]:found[1]]) {
			m.all(found[0], found[1])
		}
	}
	for _, section := range secretTables(text) {
		for _, found := range key.FindAllSubmatchIndex(text[section[0]:section[1]], -1) {
			m.value(section[0]+found[0], section[0]+found[1], false)
		}
	}
	for at := 0; ; {
		found := key.FindSubmatchIndex(text[at:])
		if found == nil {
			return m.text
		}
		start := at + found[0]
		name := keyName(text[at:], found)
		yaml := text[at+found[8]] == ':'
		at += found[1]
		if secretKey.MatchString(name) {
			m.value(start, at, yaml)
		}
	}
}

// isPrivateKey reports whether PEM in base64 has a private key, by its first line.
func isPrivateKey(encoded []byte) bool {
	start := encoded[:min(len(encoded), 64)/4*4]
	decoded := make([]byte, base64.StdEncoding.DecodedLen(len(start)))
	n, _ := base64.StdEncoding.Decode(decoded, start) // it has only characters of base64
	return bytes.Contains(decoded[:n], []byte("PRIVATE KEY"))
}

// keyName returns the last part of the key that was found in a text.
func keyName(text []byte, found []int) string {
	for group := 2; group < 8; group += 2 {
		if found[group] >= 0 {
			name := string(text[found[group]:found[group+1]])
			return name[strings.LastIndexByte(name, '.')+1:]
		}
	}
	return ""
}

// secretTables returns where the tables are that have nothing but secrets: from behind the header to the next one.
func secretTables(text []byte) (sections [][2]int) {
	headers := table.FindAllSubmatchIndex(text, -1)
	for i, header := range headers {
		end := len(text)
		if i+1 < len(headers) {
			end = headers[i+1][0]
		}
		if secretKey.Match(text[header[2]:header[3]]) {
			sections = append(sections, [2]int{header[1], end})
		}
	}
	return sections
}

type masker struct{ text []byte }

// all masks everything but the ends of lines and how they are indented, which has a meaning in YAML.
func (m masker) all(start, end int) {
	indent := false
	for i := start; i < end; i++ {
		switch c := m.text[i]; {
		case c == '\n' || c == '\r':
			indent = true
		case indent && (c == ' ' || c == '\t'):
		default:
			indent = false
			m.text[i] = mask
		}
	}
}

// value masks the value at a place, whose key begins at another.
func (m masker) value(keyAt, at int, yaml bool) {
	rest := m.text[at:]
	lineStart := bytes.LastIndexByte(m.text[:keyAt], '\n') + 1
	switch {
	case len(rest) == 0 || plain.Match(rest):
	case rest[0] == '[' || rest[0] == '{':
		m.nested(at)
	case rest[0] == '"' || rest[0] == '\'':
		// A unit can have another value behind it.
		end := m.quoted(at)
		if next := bytes.TrimLeft(m.text[end:], " \t"); len(next) > 0 && strings.IndexByte(",}]#;\r\n", next[0]) < 0 {
			m.line(end, lineEnd(m.text, end))
		}
	case yaml && strings.IndexByte("\r\n|>", rest[0]) >= 0:
		m.block(keyAt-lineStart, at)
	case number.Match(rest):
		for i := at; i < at+number.FindSubmatchIndex(rest)[3]; i++ {
			m.digit(i)
		}
	default:
		// Inside a quoted string, as in ["--token=abc"], the string ends it.
		end := lineEnd(m.text, at)
		for _, quote := range []byte{'"', '\''} {
			if until := bytes.IndexByte(m.text[at:end], quote); bytes.Count(m.text[lineStart:keyAt], []byte{quote})%2 == 1 && until >= 0 {
				end = at + until
			}
		}
		m.line(at, end)
	}
}

// line masks a value up to the end of its line, and the lines on which a unit goes on with it.
func (m masker) line(at, end int) {
	for end > at && m.text[end-1] == '\\' && end < len(m.text) {
		m.all(at, end-1)
		at = end + 1
		end = lineEnd(m.text, at)
	}
	m.all(at, end)
}

// digit masks a digit. The number stays one.
func (m masker) digit(i int) {
	if m.text[i] >= '0' && m.text[i] <= '9' {
		m.text[i] = '1'
	}
}

// lineEnd returns where the line ends that a place is in.
func lineEnd(text []byte, at int) int {
	if length := bytes.IndexByte(text[at:], '\n'); length >= 0 {
		return at + length
	}
	return len(text)
}

// quoted masks a string at a place, and returns where it ends.
func (m masker) quoted(at int) (end int) {
	quote := m.text[at : at+1]
	if three := bytes.Repeat(quote, 3); bytes.HasPrefix(m.text[at:], three) {
		start := at + len(three)
		end := bytes.Index(m.text[start:], three)
		if end < 0 {
			m.all(start, len(m.text))
			return len(m.text)
		}
		m.all(start, start+end)
		return start + end + len(three)
	}
	for i := at + 1; i < len(m.text) && m.text[i] != '\n'; i++ {
		switch {
		case m.text[i] == quote[0]:
			m.all(at+1, i)
			return i + 1
		case m.text[i] == '\\' && quote[0] == '"':
			i++
		}
	}
	end = lineEnd(m.text, at)
	m.all(at+1, end)
	return end
}

// nested masks the strings in a list or an object at a place, but not the object's keys.
func (m masker) nested(at int) {
	for depth := 0; at < len(m.text); {
		switch c := m.text[at]; {
		case c == '[' || c == '{':
			depth++
			at++
		case c == ']' || c == '}':
			if depth--; depth == 0 {
				return
			}
			at++
		case isKey(m.text[at:]):
			at += key.FindIndex(m.text[at:])[1]
		case c == '"' || c == '\'':
			at = m.quoted(at)
		case plain.Match(m.text[at:]):
			at += len(plain.Find(m.text[at:]))
		case c >= '0' && c <= '9':
			m.digit(at)
			at++
		case c == '#' && strings.IndexByte(" \t\n", m.text[at-1]) >= 0: // a comment, which is masked as well
			at++
		case strings.IndexByte(" \t\r\n,:=-+.", c) < 0:
			m.text[at] = mask
			at++
		default:
			at++
		}
	}
}

func isKey(text []byte) bool {
	found := key.FindIndex(text)
	return found != nil && found[0] == 0
}

// block masks what is indented deeper than a key of YAML, in the lines below it: the values, or the lines where there is no key.
func (m masker) block(indent, at int) {
	for at = lineEnd(m.text, at) + 1; at < len(m.text); {
		end := lineEnd(m.text, at)
		line := m.text[at:end]
		if deep := len(line) - len(bytes.TrimLeft(line, " -")); len(bytes.TrimSpace(line)) > 0 {
			if deep <= indent {
				return
			}
			start := at + deep
			if isKey(m.text[start:end]) {
				start += key.FindIndex(m.text[start:end])[1]
			}
			m.all(min(start, end), end)
		}
		at = end + 1
	}
}
