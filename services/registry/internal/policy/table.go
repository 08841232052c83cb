package policy

import "strings"

// npxSwitches are the options of npm 10.9.4 that take no value. Of -p, which is npx's own --package, it is not true.
var npxSwitches = strings.Fields(`
--all --allow-same-version --audit --bin-links --commit-hooks --description --dev --diff-ignore-all-space --diff-name-only
--diff-no-prefix --diff-text --dry-run --engine-strict --expect-results --force --foreground-scripts --format-package-lock --fund
--git-tag-version --global --global-style --if-present --ignore-scripts --include-staged --include-workspace-root --install-links
--json --legacy-bundling --legacy-peer-deps --link --long --offline --omit-lockfile-registry-resolved --optional --package-lock
--package-lock-only --parseable --prefer-dedupe --prefer-offline --prefer-online --production --progress --provenance --read-only
--rebuild-bundle --save --save-bundle --save-dev --save-exact --save-optional --save-peer --save-prod --shrinkwrap
--sign-git-commit --sign-git-tag --strict-peer-deps --strict-ssl --timing --unicode --update-notifier --usage --version
--versions --workspaces --workspaces-update --yes -? -B -D -E -H -O -P -S -a -d -dd -ddd -desc -f -g -h -help -iwr -l -local -n
-no -porcelain -q -quiet -readonly -s -silent -v -verbose -ws -y`)

// npxGreedy are the options whose value may begin with a dash.
var npxGreedy = strings.Fields(`--package -p --cache --userconfig --npm`)

// uvxValues are the options of uv 0.11.1 that take a value.
var uvxValues = strings.Fields(`
--allow-insecure-host --build-constraints --cache-dir --color --config-file --config-setting --config-settings-package
--constraints --default-index --directory --env-file --exclude-newer --exclude-newer-package --extra-index-url --find-links
--fork-strategy --from --index --index-strategy --index-url --keyring-provider --link-mode --no-binary-package
--no-build-isolation-package --no-build-package --no-sources-package --overrides --prerelease --project --python
--python-platform --refresh-package --reinstall-package --resolution --torch-backend --upgrade-package --with --with-editable
--with-requirements -C -P -b -c -f -i -p -w`)
