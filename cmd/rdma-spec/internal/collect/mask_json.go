// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"bytes"
	"encoding/json"
	"strings"
)

// MaskJSON returns a JSON document with its secrets masked: values of keys that name secrets, and what Mask finds in any string. Numbers
// stay as they are written.
func MaskJSON(text []byte) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var document any
	if err := decoder.Decode(&document); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(maskValue(document, false))
	return out.Bytes(), err
}

func maskValue(value any, secret bool) any {
	switch v := value.(type) {
	case map[string]any:
		for name, member := range v {
			v[name] = maskValue(member, secret || secretKey.MatchString(name))
		}
	case []any:
		for i, element := range v {
			v[i] = maskValue(element, secret)
		}
	case string:
		if secret {
			return strings.Repeat(string(mask), len(v))
		}
		return string(Mask([]byte(v)))
	}
	return value
}
