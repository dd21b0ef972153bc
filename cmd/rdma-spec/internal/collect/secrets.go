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
	quotedSecret = regexp.MustCompile(`(?i)([\w.-]*(?:passw|passphrase|secret|token|credential|psk|access_?key|api_?key|private_?key|key-?data|\bauth(?:orization)?\b|\bsig\b)[\w.-]*\\*["']?\s*[:=]\s*).*`)
	// userInfo is what a URL has before its host. A password can have an @.
	userInfo = regexp.MustCompile(`(://)[^\s/"'\\]+@`)
)

// jsonText is a text in JSON.
var jsonText = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// withoutSecrets encodes an answer. What a text has behind the name of a secret is left out.
func withoutSecrets(answer any) ([]byte, error) {
	encoded, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	encoded = jsonText.ReplaceAllFunc(encoded, func(quoted []byte) []byte {
		var text string
		if err := json.Unmarshal(quoted, &text); err != nil {
			panic(err) // it was encoded above
		}
		text = quotedSecret.ReplaceAllString(userInfo.ReplaceAllString(text, "${1}REDACTED@"), "${1}REDACTED")
		quoted, _ = json.Marshal(text) // a text is encoded without errors
		return quoted
	})
	var out bytes.Buffer
	err = json.Indent(&out, encoded, "", "  ")
	return out.Bytes(), err
}
