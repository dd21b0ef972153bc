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

// object is the text of a JSON object, of which values are cut out and others put in their place. Whatever is not set
// stays byte for byte: white space, order, unknown keys, and how keys, strings and numbers are spelled.
type object struct {
	place   string // where it stands in the spec, for errors: "process.capabilities"
	text    []byte
	values  map[string]span // by folded key
	end     int             // where another member can be added
	changed bool
}

// span is where a value stands in the text.
type span struct{ start, end int }

// fold returns one spelling to all keys that are equal but for case. Go programs such as runc read all of them as the
// same field.
func fold(key string) string {
	return strings.Map(func(r rune) rune {
		for {
			next := unicode.SimpleFold(r)
			if next <= r { // once around: the smallest of them
				return next
			}
			r = next
		}
	}, key)
}

// parseObject reads one JSON object. Two keys that are equal but for case are an error: nothing says which of them
// counts.
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
		return nil, fmt.Errorf("%s is not JSON: it is truncated", place)
	case err != nil:
		return nil, fmt.Errorf("%s is not JSON: %w", place, err)
	}
	return nil, fmt.Errorf("%s is followed by other data: expected one JSON object", place)
}

// members finds the members of an object in valid JSON, and looks at each byte once. A container's creation waits for
// it: decoding the spec level by level takes three times as long.
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
			return nil, fmt.Errorf("%s has the key %q twice: remove one", place, key)
		}
		start = skipSpace(text, skipSpace(text, at)+1) // behind the colon
		o.end = skipValue(text, start)
		o.values[folded] = span{start, o.end}
		at = skipSpace(text, o.end)
	}
	return o, nil
}

// skipSpace gives the place of the first byte from at on that is not white space.
func skipSpace(text []byte, at int) int {
	for at < len(text) && strings.IndexByte(" \t\r\n", text[at]) >= 0 {
		at++
	}
	return at
}

// skipValue returns the place behind the value that begins at a place in valid JSON.
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
			for at < len(text) && strings.IndexByte(" \t\r\n,]}", text[at]) < 0 { // a number, true, false or null
				at++
			}
			return at
		}
		if depth == 0 {
			return at + 1
		}
	}
}

// get returns the value of a key, nil where it is missing or null.
func (o *object) get(key string) json.RawMessage {
	at, found := o.values[fold(key)]
	if value := o.text[at.start:at.end]; found && !bytes.Equal(value, []byte("null")) {
		return value
	}
	return nil
}

// set puts a value in the place of a key's former one, or adds the key behind all others.
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

// splice replaces a part of the text and moves what stands behind it.
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

// child returns the object that stands at a key, an empty one where there is none.
func (o *object) child(key string) (*object, error) {
	value := o.get(key)
	if value == nil {
		value = []byte("{}")
	}
	return members(o.join(key), value)
}

// edit changes the object that stands at a key, and makes it where there is none and the change needs one.
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

// encode returns a value's JSON without escaping HTML. Values are of this package's own types, which always encode.
func encode(value any) json.RawMessage {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'})
}

// list returns the elements of the array that stands at a key, none where there is none.
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

// setList replaces the array that stands at a key.
func (o *object) setList(key string, elements []json.RawMessage) {
	texts := make([][]byte, len(elements))
	for i, e := range elements {
		texts[i] = e
	}
	o.set(key, slices.Concat([]byte{'['}, bytes.Join(texts, []byte{','}), []byte{']'}))
}

// objects gives the objects of the array that stands at a key, each as its text and decoded.
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
