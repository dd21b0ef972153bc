// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
)

// object is the text of a JSON object whose values can be replaced. A replacement does not change any other byte, such
// as white space, the order of keys, unknown keys, or the spelling of keys, strings, and numbers.
type object struct {
	place   string // the object's path in the spec, for error messages, such as "process.capabilities"
	text    []byte
	values  map[string]span // the positions of the values, by folded key
	end     int             // the offset at which set adds a member
	changed bool
}

// span is the position of a value in the text.
type span struct{ start, end int }

// fold returns the same string for all keys that differ only in case. Go programs such as runc decode all of these keys
// into the same field.
func fold(key string) string {
	return strings.Map(func(r rune) rune {
		for {
			next := unicode.SimpleFold(r)
			if next <= r { // the orbit wraps around after r, and next is the orbit's smallest rune
				return next
			}
			r = next
		}
	}, key)
}

// parseObject parses one JSON object. If two keys differ only in case, parseObject returns an error, because it is
// undefined which of the two keys a runtime uses.
func parseObject(place string, text []byte) (*object, error) {
	if json.Valid(text) {
		return members(place, text)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	var value json.RawMessage
	switch err := decoder.Decode(&value); {
	case len(bytes.TrimSpace(text)) == 0:
		return nil, fmt.Errorf("%s is empty: expected a JSON object", place)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%s is not JSON: the text is truncated", place)
	case err != nil:
		return nil, fmt.Errorf("%s is not JSON: %w", place, err)
	}
	return nil, fmt.Errorf("%s is followed by other data: expected one JSON object", place)
}

// members finds the members of an object in valid JSON. It reads each byte only once, because a container's creation
// waits for the result. Decoding the spec level by level would take three times as long.
func members(place string, text []byte) (*object, error) {
	at := skipSpace(text, 0)
	if text[at] != '{' {
		return nil, typeError(place, "a JSON object")
	}
	o := &object{place: place, text: text, values: map[string]span{}, end: at + 1}
	for at = skipSpace(text, at+1); text[at] != '}'; {
		if text[at] == ',' {
			at = skipSpace(text, at+1)
		}
		start := at
		at = skipValue(text, start)
		var key string
		if err := json.Unmarshal(text[start:at], &key); err != nil {
			return nil, fmt.Errorf("%s is not JSON: %w", place, err)
		}
		folded := fold(key)
		if _, twice := o.values[folded]; twice {
			return nil, fmt.Errorf("%s contains the key %q twice: remove one of the two keys", place, key)
		}
		start = skipSpace(text, skipSpace(text, at)+1) // after the colon
		o.end = skipValue(text, start)
		o.values[folded] = span{start, o.end}
		at = skipSpace(text, o.end)
	}
	return o, nil
}

// skipSpace returns the offset of the first byte at or after the offset at that is not white space.
func skipSpace(text []byte, at int) int {
	for at < len(text) && strings.IndexByte(" \t\r\n", text[at]) >= 0 {
		at++
	}
	return at
}

// skipValue returns the offset after the value that begins at the offset at in valid JSON.
func skipValue(text []byte, at int) int {
	for depth := 0; ; at++ {
		switch text[at] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			for at++; text[at] != '"'; at++ {
				if text[at] == '\\' {
					at++
				}
			}
		default:
			if depth > 0 {
				continue
			}
			for at < len(text) && strings.IndexByte(" \t\r\n,]}", text[at]) < 0 { // a number, true, false, or null
				at++
			}
			return at
		}
		if depth == 0 {
			return at + 1
		}
	}
}

// get returns the value of a key, or nil if the key is missing or its value is null.
func (o *object) get(key string) json.RawMessage {
	at, found := o.values[fold(key)]
	if value := o.text[at.start:at.end]; found && !bytes.Equal(value, []byte("null")) {
		return value
	}
	return nil
}

// set replaces the value of a key. If the object lacks the key, set adds the key after all other keys.
func (o *object) set(key string, value json.RawMessage) {
	at, found := o.values[fold(key)]
	if !found {
		var comma []byte
		if len(o.values) > 0 {
			comma = []byte{','}
		}
		o.splice(span{o.end, o.end}, slices.Concat(comma, encode(key), []byte{':'}))
		at = span{o.end, o.end}
	}
	o.splice(at, value)
	o.values[fold(key)] = span{at.start, at.start + len(value)}
}

// splice replaces a part of the text, and adjusts the positions of all values after that part.
func (o *object) splice(at span, with []byte) {
	o.changed = true
	o.text = slices.Concat(o.text[:at.start], with, o.text[at.end:])
	grown := len(with) - (at.end - at.start)
	for key, s := range o.values {
		if s.start >= at.end {
			o.values[key] = span{s.start + grown, s.end + grown}
		}
	}
	o.end += grown
}

// child returns the object at a key, or an empty object if get returns nil for the key.
func (o *object) child(key string) (*object, error) {
	value := o.get(key)
	if value == nil {
		value = []byte("{}")
	}
	return members(o.join(key), value)
}

// edit changes the object at a key. If the object at the key is missing, edit adds the object only if the change adds
// members.
func (o *object) edit(key string, change func(*object) error) error {
	child, err := o.child(key)
	if err != nil {
		return err
	}
	if err := change(child); err != nil {
		return err
	}
	if child.changed {
		o.set(key, child.text)
	}
	return nil
}

func (o *object) join(key string) string {
	if o.place == wholeSpec {
		return key
	}
	return o.place + "." + key
}

// encode returns the JSON text of a value without escaping HTML. If a value cannot be encoded, encode panics. All
// callers pass types that can always be encoded.
func encode(value any) json.RawMessage {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'})
}

// list returns the elements of the array at a key, or nil if the array is missing.
func (o *object) list(key string) ([]json.RawMessage, error) {
	value := o.get(key)
	if value == nil {
		return nil, nil
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(value, &elements); err != nil {
		return nil, typeError(o.join(key), "a JSON array")
	}
	return elements, nil
}

// setList replaces the array at a key.
func (o *object) setList(key string, elements []json.RawMessage) {
	texts := make([][]byte, len(elements))
	for i, e := range elements {
		texts[i] = e
	}
	o.set(key, slices.Concat([]byte{'['}, bytes.Join(texts, []byte{','}), []byte{']'}))
}

// objects returns the objects in the array at a key, both as JSON text and decoded.
func objects[T any](o *object, key, want string) (texts []json.RawMessage, decoded []T, err error) {
	if texts, err = o.list(key); err != nil {
		return nil, nil, err
	}
	decoded = make([]T, len(texts))
	for i, text := range texts {
		place := fmt.Sprintf("%s[%d]", o.join(key), i)
		if _, err := parseObject(place, text); err != nil {
			return nil, nil, err
		}
		if err := json.Unmarshal(text, &decoded[i]); err != nil {
			return nil, nil, typeError(place, want)
		}
	}
	return texts, decoded, nil
}
