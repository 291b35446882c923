//go:build e2e

package e2e

// scene is what a page needs: where its commands run, and shell functions of docs/lib.sh.
type scene struct {
	dir    string
	once   string // before the page
	always string // before each block; if empty, what all pages find
	after  string // after the page: restores, and checks what the commands are for
}

var scenes = map[string]scene{
	"README.md": {
		once:   "systemctl stop unlocker; no_release",
		always: "locks",
		after:  "await gone try", // by the pods, which enforce at the end
	},
	"clients/ruby/README.md":   {dir: "clients/ruby"},
	"deploy/grafana/README.md": {dir: "deploy/grafana"},
	"deploy/helm/unlocker/README.md": {
		once:   "no_release; client_files && kubectl -n unlocker delete secret etcd-client",
		always: "daemon && locks && seen",
		after:  "refused_start && release enforce",
	},
	"deploy/helm/unlocker/templates/NOTES.txt": {after: "release enforce"}, // one of its commands begins a dry run
	"deploy/icinga/README.md":                  {dir: "deploy/icinga", once: "cp /usr/local/bin/unlocker . && systemctl start icinga2"},
	"deploy/prometheus/README.md":              {dir: "deploy/prometheus", once: "mkdir -p /etc/prometheus"},
	"deploy/systemd/README.md": {
		dir:    "/run/docs/release",
		once:   "systemctl stop unlocker && no_pods && cp /usr/local/bin/unlocker /src/config.example.yaml . && cp -r /src/deploy/systemd .",
		always: "true",
		after:  "own_config && systemctl restart unlocker",
	},
	"docs/api.md": {
		once:  "usual && removed_by_each",
		after: "etcdctl del --prefix /unlocker/waiters/ && own_config && systemctl restart unlocker",
	},
	"docs/etcd-access.md": {
		dir:    "/run/docs/access",
		once:   "systemctl stop unlocker && no_pods && empty_etcd && access_files",
		always: "true",
		after:  "own_config && empty_etcd",
	},
	"docs/operations.md": {
		once: "usual && operations_files",
	},
	"docs/protocol.md": {once: "usual && etcdctl del --prefix /mutexes/billing/invoices/", always: "true"},
	"docs/runbooks/README.md": {
		once: "usual && lost_watch",
	},
	"docs/runbooks/UnlockerCertificateExpiring.md":     {once: "client_files"},
	"docs/runbooks/UnlockerCertificateExpiringSoon.md": {once: "client_files"},
	"docs/runbooks/UnlockerDown.md":                    {once: "usual && crash"},
	"docs/runbooks/UnlockerDryRun.md":                  {once: "systemctl stop unlocker && dry_release"},
	"docs/runbooks/UnlockerEtcdAlarm.md": {
		once:   "fill",
		always: "true",
		after:  "freed && usual",
	},
	"docs/runbooks/UnlockerForcedUnlock.md":        {once: "usual && removed_by_each"},
	"docs/runbooks/UnlockerForcedUnlockFailing.md": {once: "usual && busy_release"},
	"docs/runbooks/UnlockerHeld.md":                {once: "usual && busy_release"},
	"docs/runbooks/UnlockerLockNotReleased.md":     {once: "usual && busy_release"},
	"docs/runbooks/UnlockerNoLeader.md":            {once: "usual && systemctl stop unlocker && await any 'elected leader'"},
	"docs/runbooks/UnlockerPaused.md":              {always: "locks && pauses"},
	"docs/runbooks/UnlockerReplicaBlind.md":        {once: "usual && lost_watch"},
	"docs/runbooks/UnlockerReplicaDown.md":         {once: "usual && crash"},
	"docs/runbooks/UnlockerWatchUnstable.md":       {once: "usual && lost_watch"},
}

// expectation is what a command does other than to exit with 0 and to print something.
type expectation struct {
	codes  []int
	output string // a pattern of what it prints, errors included
	until  string // a pattern of what a command prints that does not end
	before string // shell
}

// The keys are the commands without their comments.
var expected = map[string]expectation{
	"go run ./cmd/unlocker-demo": {until: "etcd and unlocker are up"},
	"bin/unlocker serve --etcd-endpoints etcd-1:2379,etcd-2:2379,etcd-3:2379 --reaper-mode dry-run": {until: `"msg":"listed the locks"`},
	"timeout -s KILL 5 bin/unlocker lock try --patience 5s -- sleep 60":                             {codes: []int{137}, output: "Killed|^$"},
	"bin/unlocker check -v":                              {codes: []int{1}, output: "^UNLOCKER WARNING: "},
	"unlocker serve --config unlocker.yaml":              {until: `"msg":"listed the locks"`, before: "export UNLOCKER_OPS_LISTEN=127.0.0.2:9480 UNLOCKER_WEB_LISTEN=127.0.0.2:9481"},
	"unlocker list --etcd-endpoints https://etcd-0:2379": {codes: []int{1}, output: "etcd may not use TLS"},
	`unlocker show '"evil\x1b[31mred\nnew"'`:             {codes: []int{1}, output: `no lock "evil\\x1b`},
	"unlocker list --silent --url http://127.0.0.1:9481": {output: "^none of the "},
	`unlocker unlock --match 'nightly/**' --silent --url http://127.0.0.1:9481 --reason "rack 7 lost power"`: {codes: []int{1}, output: "none of the .* is held by a silent holder: nothing was removed"},
	"curl -s -u ada -X POST localhost:9481/api/v1/locks/billing/invoices/ask":                                {before: "people_unlock", output: "its process does not answer within 5s; last renewed at "},
	"unlocker deadlocks": {output: "no deadlock under /mutexes/"},
	"curl -s 'localhost:9481/api/v1/waiters?name=billing/invoices' | jq -c '.waiters[] | {hostname, pid, seen}'": {before: "deadlock", output: "worker-3"},
	"curl -s localhost:9481/api/v1/deadlocks | jq -c '.deadlocks[].flows[] | {hostname, pid, held, lock}'":       {before: "deadlock", output: `worker-3.*"held":\["billing/invoices"\]`},
	"unlocker ask billing/invoices": {codes: []int{1}, output: "its process does not answer within 5s; last renewed at "},
	"unlocker ask NAME":             {codes: []int{1}, output: "its process does not answer within 5s; last renewed at "},
	"unlocker list --state expired -o wide --url http://HOST:9481": {output: "^none of the |^NAME"}, // the daemon removes them
	"unlocker pause list":                                                      {output: "^nothing is paused|REASON"},
	"unlocker list --watch --sort urgency":                                     {until: `billing/invoices +`},
	"unlocker list --watch | cat":                                              {until: `billing/invoices +`},
	"unlocker list --watch -o jsonpath='{.type} {.name} {.lock.state}'":        {until: "lock billing/invoices "},
	"unlocker show billing":                                                    {codes: []int{1}, output: `there are locks below it: "billing/invoices"`},
	"unlocker check --url http://unlocker-0:9481 --url http://unlocker-1:9481": {codes: []int{1}, output: "^UNLOCKER WARNING: "},
	"/usr/local/bin/unlocker check -t 8 -w 0 -c 20":                            {codes: []int{1}, output: "^UNLOCKER WARNING: "},
	"curl -s http://HOST:9481/api/v1/locks/billing/invoices | jq .verdict":     {output: `"action": "wait"`},
	`curl -sN 'localhost:9481/api/v1/events?state=overdue,expired' | jq -R --unbuffered 'ltrimstr("data: ") | fromjson? | {type, name, matched}'`:                                     {until: `"type": "reset"`},
	"etcdctl user add unlocker --interactive=false < password":                                                                                                                        {before: "etcdctl user delete unlocker"},
	"kubectl -n unlocker port-forward POD 9480 9481":                                                                                                                                  {until: "Forwarding from"},
	"kubectl -n unlocker port-forward svc/unlocker-web 9481:9481":                                                                                                                     {until: "Forwarding from"},
	"kubectl -n unlocker logs -l app.kubernetes.io/name=unlocker --tail=-1 | jq -cR 'fromjson? | select(.lock == \"billing/invoices\")'":                                              {before: "removed_by_each"},
	"etcdutl snapshot restore snapshot.db --bump-revision 1000000000 --mark-compacted --data-dir DIRECTORY --name MEMBER --initial-cluster CLUSTER --initial-advertise-peer-urls URL": {output: "restored snapshot"},
	`etcdctl --command-timeout=10m get "" --prefix -w json | jq -r '.kvs[] | [(.key | @base64d | split("/")[:3] | join("/")), (.key + (.value // "") | length * 3 / 4)] | @tsv' | awk -F'\t' '{n[$1]++; b[$1] += $2} END {for (k in n) printf "%d bytes in %d keys: %s\n", b[k], n[k], k}' | sort -rn | head | cat -v`: {output: `^10\d{5} bytes in 1 keys: /other/big\n`},
	`curl -s -u ada localhost:9481/api/v1/locks/billing/invoices/unlock --json '{"uuid": "UUID", "reason": "worker-17 was replaced"}'`:                                                                                                                                                                                 {before: "people_unlock", output: `"who": "ada@`},
	`curl -s -u ada localhost:9481/api/v1/unlock --json '{"match": "nightly/**", "silent": true}'`:                                                                                                                                                                                                                     {before: "people_unlock", output: `"locks": `},
	"unlocker drill --url http://unlocker-0:9481 --url http://unlocker-1:9481 --prometheus http://prometheus:9090 --alertmanager http://alertmanager:9093":                                                                                                                                                             {codes: []int{1}, output: "(?s)✗ +-  overdue in Prometheus: does not answer.*✗ +-  alert in Alertmanager: does not answer.*✓ .*handed over to a waiter"},
	"htpasswd -niBC 10 ada < password":                            {before: "echo secret >password", output: `ada:\$2y\$10\$`},
	"chronyc makestep":                                            {codes: []int{1}, output: "500 Failure"}, // this chronyd must not set the clock
	"etcdctl watch --rev=REVISION /mutexes/billing/invoices/uuid": {until: "DELETE"},
	"/usr/local/bin/unlocker check -v --url http://unlocker-0:9481 --url http://unlocker-1:9481 -w '$ARG1$' -c '$ARG2$'": {codes: []int{1}, output: "^UNLOCKER WARNING: "},
}

// notHere are the commands that this test does not execute, and why.
var notHere = map[string]string{
	"make quick":       inTheGate,
	"make test":        inTheGate,
	"make lint":        inTheGate,
	"make e2e":         inTheGate,
	"make chart":       inTheGate,
	"make sim":         inTheGate,
	"make hunt-short":  inTheGate,
	"make release":     inTheGate,
	"make clients":     inTheGate,
	"make conformance": inTheGate,
	"go run ./cmd/unlocker-conformance -- python3 clients/python/conformance.py": "is part of make conformance",
	"go run ./cmd/unlocker-conformance --run lost -v -- ./my-driver":             "needs a driver of the reader",
	".ci/run":                           "is the gate",
	".ci/nightly":                       "takes four hours",
	"make race":                         inNightly,
	"make fuzz":                         inNightly,
	"make bench":                        measurement,
	"make bench-big":                    measurement,
	"make bench-peers":                  measurement,
	"make bench-compare BASE=main":      measurement,
	".ci/test.sh race internal/reaper$": "is part of make race",
	"go test -run TestS6_TwoReplicas ./internal/app":                                                "is part of make test",
	"go test -count=1 -tags e2e -v -run TestMonitoring ./e2e":                                       "is part of make e2e",
	"go test -v -run TestS6_TwoReplicas ./internal/app":                                             "is part of make test",
	"go test -count=1 -tags e2e -v -run 'TestEachOverdueLockIsNotifiedInTime|TestMonitoring' ./e2e": "is part of make e2e",

	"make hunt":                          inNightly,
	"make explore":                       inNightly,
	"make mutate PKG=./internal/verdict": inNightly,
	"make mutate PKG=…":                  "its package is a placeholder",
	"make mutants RULES=S3":              "is part of make mutants",
	"make mutants RULES='S3/a_removal_waits_for_a_probe_that_began'":                 "is part of make mutants",
	"HUNT_TIME=1m HUNT_WITHOUT=no-patience make hunt":                                "is part of make hunt-convict",
	"SIM_HISTORIES=1000 SIM_SERVER_HISTORIES=50 SIM_SEED=20261124 make sim":          "is make sim with another seed",
	"go test -count=1 -v -run 'TestJudgesConvict|Test[A-N]_|TestF2_' ./internal/sim": "is part of make test",
	"go test -count=1 -v -run 'TestNoHistory|TestRules' ./internal/sim/explore":      "is part of make test",
	"make mutants-sim":  measurement,
	"make hunt-convict": inNightly,
	"make soak":         inNightly,
	"make model":        inNightly,
	"make replay":       inNightly,
	"go test -run '^$' -bench Footprint -benchtime 1x -timeout 30m ./bench":                                               measurement,
	"BENCH_LOCKS=100000 go test -run '^$' -bench Peers/removal-100000 -benchtime 1x -timeout 1h ./bench":                  measurement,
	"BENCH_LOCKS=1000000 go test -run '^$' -bench Peers/growth -benchtime 1x -timeout 1h ./bench":                         measurement,
	"BENCH_LOCKS=20000 go test -run '^$' -bench 'Peers/removal-20000/(bare|unlocker)' -benchtime 1x -timeout 30m ./bench": measurement,
	"go test -run '^$' -bench Removal -benchtime 1x ./bench":                                                              measurement,
	"go test -run '^$' -bench Uncontended -benchtime 1x ./bench":                                                          measurement,
	"go test -run '^$' -bench Handoff -benchtime 1x -timeout 30m ./bench":                                                 measurement,
	"go test -run '^$' -bench TryLockAll -benchtime 1x ./bench":                                                           measurement,
	"go test -run '^$' -bench Keep -benchtime 1x ./bench":                                                                 measurement,
	"go test -run '^$' -bench OneDue -benchtime 1x ./bench":                                                               measurement,
	"go test -run '^$' -bench Scrape ./bench":                                                                             measurement,
	"go test -run '^$' -bench History -benchtime 3x ./bench":                                                              measurement,
	"go test -run '^$' -bench Pages -benchtime 20x ./bench":                                                               measurement,
	"go test -run '^$' -bench Events -benchtime 1x ./bench":                                                               measurement,
	"go test -run '^$' -bench 'Streams$' -benchtime 1x ./bench":                                                           measurement,
	"go test -run '^$' -bench RemovalWithStreams -benchtime 1x ./bench":                                                   measurement,
	"go test -count=1 -v -tags e2e -run TestManyLocksInTheBrowser ./e2e":                                                  "is part of make e2e",
	"go test ./internal/scan -run xxx -bench List1M -benchtime 4x":                                                        measurement,
	"go test -run '^$' -bench CatchUp -benchtime 1x ./bench":                                                              measurement,
	"go test -run '^$' -bench Memory -benchtime 1x ./internal/table":                                                      measurement,
	"go test -run '^$' -bench Renewal ./internal/table":                                                                   measurement,
	"go test -run '^$' -bench Scrape -benchtime 200x ./internal/metrics":                                                  measurement,

	"go get github.com/etcd-unlocker/unlocker/mutex":                                    "adds the client to the module of the reader",
	"go get github.com/etcd-unlocker/unlocker/mutex@vX.Y.Z":                             releases,
	"git tag -a mutex/v0.2.0 -m 'Client 0.2.0'":                                         releases,
	"git push origin mutex/v0.2.0":                                                      releases,
	"go mod init example.test && go get github.com/etcd-unlocker/unlocker/mutex@v0.2.0": releases,
	"go mod edit -require github.com/etcd-unlocker/unlocker/mutex@v0.2.0":               releases,
	"go mod tidy":                           releases,
	"go version -m":                         "is named in a sentence, without a binary",
	"git tag -a v0.2.0 -m 'unlocker 0.2.0'": releases,
	"git push origin v0.2.0":                releases,
	"go install github.com/etcd-unlocker/unlocker/cmd/unlocker@VERSION": "is refused by the go command, as the page says",

	"apt-get install ./unlocker_0.2.0_amd64.deb":        "is part of TestRelease, by dpkg",
	"pip install ./clients/python":                      "would install into the Python of the machine",
	"pip install unlocker_mutex-0.1.0-py3-none-any.whl": "is part of make conformance",

	"make image BUILDER='buildah bud'":                     noEngine,
	"make image IMAGE=registry.example.org/unlocker:0.1.0": noEngine,
	"make image": noEngine,
	"skopeo copy --all oci-archive:dist/unlocker-v0.2.0-image.tar docker://registry.example.org/unlocker:0.2.0": noEngine,
	"k3s ctr images import dist/unlocker-VERSION-image.tar":                                                     noEngine,
	"docker push registry.example.org/unlocker:0.1.0":                                                           noEngine,
	"kind load docker-image ghcr.io/etcd-unlocker/unlocker:0.1.0":                                               noEngine,
	"minikube image load ghcr.io/etcd-unlocker/unlocker:0.1.0":                                                  noEngine,
	"docker save ghcr.io/etcd-unlocker/unlocker:0.1.0 | k3s ctr images import -":                                noEngine,
	"CRASH=… e2e/kubernetes/run.sh":                                                                             "needs a cluster with nodes",
}

const (
	inTheGate   = "is a line of .ci/run"
	inNightly   = "is a line of .ci/nightly"
	measurement = "measures for minutes"
	releases    = "is a step of a release, of tags that are not there"
	noEngine    = "needs a container engine, a registry or a cluster"
)
