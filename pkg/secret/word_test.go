package secret_test

import (
	"testing"

	"github.com/toolherd/toolherd/pkg/secret"
)

// API-006, API-007
func TestLooksSecret(t *testing.T) {
	for _, key := range []string{
		"api_key", "apikey", "access_key", "private_key", "client_secret", "secret", "token", "password", "passwd",
		"credential", "credentials", "authorization", "bearer",
		"githubToken", "X-Api-Key", "APIKey", "apiKEY", "GITHUBToken", "GITHUB_TOKEN", "accessKeyId", "token_url", "my.secret.x",
		"OAuthToken", "api__key", "-token-", "s3 secret",
	} {
		if !secret.LooksSecret(key) {
			t.Errorf("%q must look secret", key)
		}
	}
	for _, key := range []string{"", "tokenizer", "tokens", "key", "keyboard", "secretary", "passwords", "author", "api", "api_keys", "apikeys", "monkey"} {
		if secret.LooksSecret(key) {
			t.Errorf("%q must not look secret", key)
		}
	}
}
