// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"bytes"
	"encoding/json"
	"regexp"
)

// The archive has no file that could have credentials: an answer has what is needed of it. But an error in an answer
// can quote such a file.
var (
	// quotedSecret is a key whose value is a secret, in any format, or in a URL.
	quotedSecret = regexp.MustCompile(`(?i)([\w.-]*(?:passw|passphrase|secret|token|credential|psk|access_?key|api_?key|private_?key|\bauth\b|\bsig\b)[\w.-]*\\*["']?\s*[:=]\s*).*`)
	// userInfo is what a URL has before its host. A password can have an @.
	userInfo = regexp.MustCompile(`(://)[^\s/"'\\]+@`)
)

// withoutSecrets encodes an answer. What a text has behind the name of a secret is left out.
func withoutSecrets(answer any) ([]byte, error) {
	text, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
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
	err = encoder.Encode(redacted(document))
	return out.Bytes(), err
}

func redacted(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for name, member := range v {
			v[name] = redacted(member)
		}
	case []any:
		for i, element := range v {
			v[i] = redacted(element)
		}
	case string:
		return quotedSecret.ReplaceAllString(userInfo.ReplaceAllString(v, "${1}REDACTED@"), "${1}REDACTED")
	}
	return value
}
