package webhook

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
)

// The vectors are those of the libraries that the authors of Standard Webhooks publish.
const (
	vectorID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	vectorTimestamp = "1614265330"
	vectorBody      = `{"test": 2432232314}`
	symmetricKey    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	symmetricVector = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	asymmetricKey   = "whsk_VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk="
	asymmetricVec   = "v1a,tQ9V2XOqn7jL/DQenEFpqIugdBVtiMmER5mhSkXBNwM0mkATuDe6KYYUuxqtaiHeYGb7KaaBRdM5WqyeFiL8Ag=="
)

func keys(t *testing.T, texts ...string) []Key {
	t.Helper()
	var out []Key
	for _, text := range texts {
		k, err := ParseKey(text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, k)
	}
	return out
}

func TestSignaturesAreThoseOfThePublishedVectors(t *testing.T) {
	seed, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(asymmetricKey, "whsk_"))
	if err != nil {
		t.Fatal(err)
	}
	whole := "whsk_" + base64.StdEncoding.EncodeToString(ed25519.NewKeyFromSeed(seed))
	for _, c := range []struct{ key, want string }{
		{symmetricKey, symmetricVector},
		{asymmetricKey, asymmetricVec},
		{strings.TrimRight(asymmetricKey, "="), asymmetricVec},
		{whole, asymmetricVec},
	} {
		if got := sign(keys(t, c.key), vectorID, vectorTimestamp, []byte(vectorBody)); got != c.want {
			t.Errorf("%s signs %s, want %s", c.key, got, c.want)
		}
	}
	both := sign(keys(t, symmetricKey, asymmetricKey), vectorID, vectorTimestamp, []byte(vectorBody))
	if want := symmetricVector + " " + asymmetricVec; both != want {
		t.Errorf("two keys sign %s, want %s", both, want)
	}
}

func TestKeysThatAreNoneAreRefusedAndNotShown(t *testing.T) {
	wrongPublic := append(make([]byte, 32), "0123456789abcdef0123456789abcdef"...)
	for text, want := range map[string]string{
		"hunter2hunter2hunter2hunter2":          "neither",
		"":                                      "neither",
		"whpk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw": "neither",
		"whsec_hunter2!":                        "not base64",
		"whsec_":                                "0 bytes",
		"whsec_aHVudGVyMg==":                    "7 bytes",
		"whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 65)):      "65 bytes",
		"whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw":                             "ed25519",
		"whsk_" + base64.StdEncoding.EncodeToString(wrongPublic):            "ed25519",
		"whsk_" + base64.StdEncoding.EncodeToString(make([]byte, 32)) + "!": "not base64",
	} {
		k, err := ParseKey(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, want an error about %s", text, k, err, want)
			continue
		}
		if secret := strings.TrimPrefix(text, "whsec_"); len(secret) > 3 && strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows the key: %v", err)
		}
	}
	shown := fmt.Sprintf("%v %+v %#v %s", keys(t, symmetricKey), keys(t, symmetricKey)[0], keys(t, asymmetricKey)[0], keys(t, asymmetricKey)[0])
	if shown != "[v1 key] v1 key v1a key v1a key" {
		t.Errorf("keys print as %s", shown)
	}
}
