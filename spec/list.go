// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

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
