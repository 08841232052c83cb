package fake

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tolerance is how far a webhook-timestamp may be from the clock, as the specification's libraries have it.
const tolerance = 5 * time.Minute

// key is one that a receiver verifies with: whsec_… for v1, whpk_… for v1a.
type key struct {
	version string
	bytes   []byte
}

func parseKey(text string) (key, error) {
	for prefix, version := range map[string]string{"whsec_": "v1", "whpk_": "v1a"} {
		if rest, ok := strings.CutPrefix(text, prefix); ok {
			b, err := base64.StdEncoding.DecodeString(rest)
			if err != nil || version == "v1a" && len(b) != ed25519.PublicKeySize {
				return key{}, fmt.Errorf("a key with prefix %s is malformed", prefix)
			}
			return key{version, b}, nil
		}
	}
	return key{}, errors.New("a key begins with neither whsec_ nor whpk_")
}

// verify returns how many of the keys a signature in the headers is by. It fails where the headers are not those of
// Standard Webhooks, where the timestamp is too far from now, and where no key fits.
func verify(keys []key, h http.Header, body []byte, now time.Time) (int, error) {
	id, stamp := h.Get("webhook-id"), h.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	switch {
	case id == "":
		return 0, errors.New("no webhook-id")
	case err != nil:
		return 0, fmt.Errorf("webhook-timestamp %q is not a number of seconds", stamp)
	case now.Sub(time.Unix(seconds, 0)).Abs() > tolerance:
		return 0, fmt.Errorf("webhook-timestamp %q is more than %v away", stamp, tolerance)
	}
	signed := slices.Concat([]byte(id+"."+stamp+"."), body)
	fit := 0
	for _, k := range keys {
		for entry := range strings.FieldsSeq(h.Get("webhook-signature")) {
			version, text, _ := strings.Cut(entry, ",")
			signature, err := base64.StdEncoding.DecodeString(text)
			if err == nil && version == k.version && k.fits(signed, signature) {
				fit++
				break
			}
		}
	}
	if fit == 0 {
		return 0, errors.New("webhook-signature has no signature by a key of this receiver")
	}
	return fit, nil
}

func (k key) fits(signed, signature []byte) bool {
	if k.version == "v1a" {
		return ed25519.Verify(k.bytes, signed, signature)
	}
	mac := hmac.New(sha256.New, k.bytes)
	mac.Write(signed)
	return hmac.Equal(mac.Sum(nil), signature)
}
