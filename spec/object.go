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
)

// object is a JSON object of which only the members that are set change: order, white space inside values, unknown keys and
// the text of numbers stay. As long as nothing is set, text gives back what was parsed, byte for byte.
type object struct {
	place   string // where it stands in the spec, for errors: "process.capabilities"
	source  []byte
	members []member
	changed bool
}

type member struct {
	key   string
	value json.RawMessage
}

// parseObject reads one JSON object. Two keys that are equal but for case are an error: Go programs such as runc take either
// for the same field, so nobody could say which of them counts.
func parseObject(place string, text []byte) (*object, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, fmt.Errorf("%s is empty: expected a JSON object", place)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	start, err := decoder.Token()
	if err != nil {
		return nil, syntaxError(place, err)
	}
	if start != json.Delim('{') {
		return nil, typeError(place, "JSON object")
	}
	o := &object{place: place, source: text}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return nil, syntaxError(place, err)
		}
		m := member{key: key.(string)}
		if err := decoder.Decode(&m.value); err != nil {
			return nil, syntaxError(place, err)
		}
		if o.position(m.key) >= 0 {
			return nil, fmt.Errorf("%s has the key %q twice: keep one of them", place, m.key)
		}
		o.members = append(o.members, m)
	}
	if _, err := decoder.Token(); err != nil {
		return nil, syntaxError(place, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s is followed by something else: expected one JSON object", place)
	}
	return o, nil
}

func syntaxError(place string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s is no JSON: it ends in the middle", place)
	}
	return fmt.Errorf("%s is no JSON: %w", place, err)
}

// position gives the index of a key, -1 if it is not there. Case is ignored, as by Go programs that read the spec.
func (o *object) position(key string) int {
	return slices.IndexFunc(o.members, func(m member) bool { return strings.EqualFold(m.key, key) })
}

// get gives the value of a key, nil where it is missing or null.
func (o *object) get(key string) json.RawMessage {
	if i := o.position(key); i >= 0 && !bytes.Equal(o.members[i].value, []byte("null")) {
		return o.members[i].value
	}
	return nil
}

func (o *object) set(key string, value json.RawMessage) {
	o.changed = true
	if i := o.position(key); i >= 0 {
		o.members[i].value = value
		return
	}
	o.members = append(o.members, member{key, value})
}

// child gives the object that stands at a key, an empty one where there is none.
func (o *object) child(key string) (*object, error) {
	place := o.join(key)
	value := o.get(key)
	if value == nil {
		return &object{place: place, source: []byte("{}")}, nil
	}
	return parseObject(place, value)
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
		o.set(key, child.text())
	}
	return nil
}

// list gives the elements of the array that stands at a key, none where there is none.
func (o *object) list(key string) ([]json.RawMessage, error) {
	value := o.get(key)
	if value == nil {
		return nil, nil
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(value, &elements); err != nil {
		return nil, typeError(o.join(key), "JSON array")
	}
	return elements, nil
}

// setList replaces the array that stands at a key.
func (o *object) setList(key string, elements []json.RawMessage) {
	o.set(key, slices.Concat([]byte{'['}, bytes.Join(rawBytes(elements), []byte{','}), []byte{']'}))
}

func rawBytes(elements []json.RawMessage) [][]byte {
	out := make([][]byte, len(elements))
	for i, e := range elements {
		out[i] = e
	}
	return out
}

func (o *object) join(key string) string {
	if o.place == "the spec" {
		return key
	}
	return o.place + "." + key
}

// text gives the object's JSON.
func (o *object) text() []byte {
	if !o.changed {
		return o.source
	}
	var out bytes.Buffer
	out.WriteByte('{')
	for i, m := range o.members {
		if i > 0 {
			out.WriteByte(',')
		}
		out.Write(encode(m.key))
		out.WriteByte(':')
		out.Write(m.value)
	}
	out.WriteByte('}')
	return out.Bytes()
}

// encode gives a value's JSON without escaping HTML. Values are of this package's own types, which always encode.
func encode(value any) json.RawMessage {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'})
}
