package serverconfig_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/toolherd/toolherd/pkg/serverconfig"
)

func remote(keys string) string { return `{"url":"https://x.example",` + keys + `}` }

func TestCredentialLayersAreNamed(t *testing.T) {
	for _, c := range []struct {
		keys string
		want []string
	}{
		{`"headers":{"Authorization":"Bearer x"}`, nil},
		{`"oauth":null,"auth":null,"user_auth":null,"headers_from_context":null`, nil},
		{`"oauth":{"token_url":"https://x.example"}`, []string{"oauth"}},
		{`"oauth":{"token_url":"https://x.example","enabled":false}`, nil},
		{`"auth":"oauth"`, []string{"auth"}},
		{`"user_auth":{}`, []string{"user_auth"}},
		{`"user_auth":{"enabled":false}`, nil},
		{`"headers_from_context":{"headers":{"X-A":"a"}}`, []string{"headers_from_context"}},
		{`"allowed_users":["a"],"allowed_roles":["b"]`, []string{"allowed_users", "allowed_roles"}},
	} {
		e := decode(t, remote(c.keys))
		if diff := cmp.Diff(c.want, e.CredentialLayers()); diff != "" {
			t.Errorf("%s: %s", c.keys, diff)
		}
	}
}

func TestOAuthBlock(t *testing.T) {
	expect(t, remote(`"oauth":{"token_url":"https://x.example/token","client_id":"a","client_secret":null,"scope":"s","extra_token_params":{"a":"b"},"refresh_skew_seconds":-5}`))
	expect(t, remote(`"oauth":{}`), "error oauth.token_url missing")
	expect(t, remote(`"oauth":{"token_url":""}`), "error oauth.token_url missing")
	expect(t, remote(`"oauth":{"token_url":5}`), "error oauth.token_url wrong_type")
	expect(t, remote(`"oauth":[]`), "error oauth wrong_type")
	expect(t, remote(`"oauth":{"token_url":"u","grant_type":"password","client_secret":1,"extra_token_params":{"a":1},"refresh_skew_seconds":"x","enabled":1}`),
		"error oauth.enabled wrong_type", "error oauth.client_secret wrong_type", "error oauth.grant_type unsupported",
		"error oauth.extra_token_params.a wrong_type", "error oauth.refresh_skew_seconds wrong_type")
	expect(t, `{"command":"x","oauth":{"token_url":"u"}}`, "warning oauth ignored")
}

// CFG-038
func TestAuth(t *testing.T) {
	expect(t, remote(`"auth":"oauth"`))
	expect(t, remote(`"auth":null`))
	expect(t, remote(`"auth":{"type":"oauth","client_id":"a","client_secret":"b","scopes":["c"],"redirect_uri":"d","client_metadata_url":"e"}`))
	expect(t, remote(`"auth":"basic"`), "error auth unsupported")
	expect(t, remote(`"auth":""`), "error auth unsupported")
	expect(t, remote(`"auth":true`), "error auth wrong_type")
	expect(t, remote(`"auth":[]`), "error auth wrong_type")
	expect(t, remote(`"auth":{}`), "error auth.type unsupported")
	expect(t, remote(`"auth":{"type":"basic"}`), "error auth.type unsupported")
	expect(t, remote(`"auth":{"type":"oauth","scopes":"a","client_id":1}`), "error auth.client_id wrong_type", "error auth.scopes wrong_type")
	expect(t, `{"command":"x","auth":"oauth"}`, "error auth conflict")
	expect(t, `{"command":"x","auth":null}`)
}

// CFG-039
func TestAuthExcludesOtherCredentials(t *testing.T) {
	expect(t, remote(`"auth":"oauth","oauth":{"token_url":"u"}`), "error auth conflict")
	for _, name := range []string{"Authorization", "authorization", "AUTHORIZATION"} {
		expect(t, remote(`"auth":"oauth","headers":{"`+name+`":"Bearer ${A}"}`), "error auth conflict")
		expect(t, remote(`"auth":{"type":"oauth"},"headers":{"`+name+`":"x"}`), "error auth conflict")
	}
	expect(t, remote(`"auth":"oauth","headers":{"X-Authorization":"x"}`))
	expect(t, remote(`"oauth":{"token_url":"u"},"headers":{"Authorization":"x"}`))
}

func TestUserAuthAndHeadersFromContext(t *testing.T) {
	expect(t, remote(`"user_auth":{"header":"X-Key","users":{"bob@example.com":"Bearer ${BOB}"},"on_missing":"passthrough"}`))
	expect(t, remote(`"user_auth":{"header":" "}`), "error user_auth.header bad_name")
	expect(t, remote(`"user_auth":{"header":"a b"}`), "error user_auth.header bad_name")
	expect(t, remote(`"user_auth":{"users":[],"on_missing":"allow"}`), "error user_auth.users wrong_type", "error user_auth.on_missing unsupported")
	expect(t, remote(`"user_auth":{"users":{"bob":5}}`), "error user_auth.users.bob wrong_type")
	expect(t, remote(`"user_auth":{"users":{"bob":"a\nb"}}`), "warning user_auth.users.bob illegal_header")
	expect(t, remote(`"user_auth":{"users":{"bob":"${"}}`), "error user_auth.users.bob bad_reference")
	expect(t, remote(`"headers_from_context":{"headers":{"X-A":"a","x-a":"b"}}`), "error headers_from_context.headers.x-a conflict")
	expect(t, remote(`"headers_from_context":{"headers":{" ":"a"}}`), `error headers_from_context.headers[" "] bad_name`)
	expect(t, remote(`"headers_from_context":{"headers":{"X-A":" "}}`), "error headers_from_context.headers.X-A missing")
	expect(t, remote(`"headers_from_context":{"headers":{"X-A":1}}`), "error headers_from_context.headers.X-A wrong_type")
}

func TestLayersThatWriteHeadersCannotActOnStdio(t *testing.T) {
	for _, key := range []string{"user_auth", "headers_from_context"} {
		expect(t, `{"command":"x","`+key+`":{}}`, "error "+key+" conflict")
		expect(t, `{"command":"x","`+key+`":{"on_missing":"deny"}}`, "error "+key+" conflict")
		expect(t, `{"command":"x","`+key+`":{"on_missing":"passthrough"}}`, "warning "+key+" ignored")
		expect(t, `{"command":"x","`+key+`":{"enabled":false}}`)
	}
}

func TestBlocksAreKeptAsWritten(t *testing.T) {
	e, problems := serverconfig.Decode("srv", []byte(remote(`"oauth":{ "token_url": "u", "x": 1.50 }`)))
	if e.OAuth == nil || string(e.OAuth.JSON) != `{ "token_url": "u", "x": 1.50 }` || serverconfig.HasErrors(problems) {
		t.Errorf("%+v %v", e.OAuth, problems)
	}
}
