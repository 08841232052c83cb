package webhook

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// Prefixes of signing keys, as Standard Webhooks serialises them.
const (
	symmetricPrefix  = "whsec_" // base64 of random bytes: v1, HMAC-SHA256
	asymmetricPrefix = "whsk_"  // base64 of an ed25519 private key or its seed: v1a
)

// Bounds of a symmetric key that the specification gives, in bytes.
const (
	minKey = 24
	maxKey = 64
)

// Key signs deliveries. Printing one shows nothing.
type Key struct {
	symmetric  []byte
	asymmetric ed25519.PrivateKey
}

// ParseKey reads a key. The error says what is wrong and shows nothing of it.
func ParseKey(text string) (Key, error) {
	if rest, ok := strings.CutPrefix(text, symmetricPrefix); ok {
		b, err := decode(rest)
		switch {
		case err != nil:
			return Key{}, err
		case len(b) < minKey || len(b) > maxKey:
			return Key{}, fmt.Errorf("a %s key has %d bytes, want %d to %d: make one with `openssl rand -base64 32`", symmetricPrefix, len(b), minKey, maxKey)
		}
		return Key{symmetric: b}, nil
	}
	if rest, ok := strings.CutPrefix(text, asymmetricPrefix); ok {
		b, err := decode(rest)
		switch {
		case err != nil:
			return Key{}, err
		case len(b) == ed25519.SeedSize:
			return Key{asymmetric: ed25519.NewKeyFromSeed(b)}, nil
		case len(b) == ed25519.PrivateKeySize && bytes.Equal(b, ed25519.NewKeyFromSeed(b[:ed25519.SeedSize])):
			return Key{asymmetric: b}, nil
		}
		return Key{}, fmt.Errorf("a %s key is no ed25519 private key: want the base64 of its 32 byte seed, or of seed and public key", asymmetricPrefix)
	}
	return Key{}, fmt.Errorf("a key begins with neither %s nor %s: write %s and the base64 of %d to %d random bytes, or %s and the base64 of an ed25519 private key",
		symmetricPrefix, asymmetricPrefix, symmetricPrefix, minKey, maxKey, asymmetricPrefix)
}

func decode(text string) ([]byte, error) {
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
	if err != nil {
		return nil, errors.New("a key is not base64 behind its prefix")
	}
	return b, nil
}

// String returns the kind of the key.
func (k Key) String() string {
	if k.asymmetric != nil {
		return "v1a key"
	}
	return "v1 key"
}

// GoString is [Key.String].
func (k Key) GoString() string { return k.String() }

// sign returns the value of webhook-signature for a delivery: one signature for each key, in their order.
func sign(keys []Key, id, timestamp string, body []byte) string {
	signed := make([]byte, 0, len(id)+len(timestamp)+len(body)+2)
	signed = append(signed, id...)
	signed = append(signed, '.')
	signed = append(signed, timestamp...)
	signed = append(signed, '.')
	signed = append(signed, body...)
	var b strings.Builder
	for i, k := range keys {
		if i > 0 {
			b.WriteByte(' ')
		}
		if k.asymmetric != nil {
			b.WriteString("v1a,")
			b.WriteString(base64.StdEncoding.EncodeToString(ed25519.Sign(k.asymmetric, signed)))
			continue
		}
		mac := hmac.New(sha256.New, k.symmetric)
		mac.Write(signed)
		b.WriteString("v1,")
		b.WriteString(base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return b.String()
}
