# frozen_string_literal: true

require_relative "support"

# Taking, renewing and releasing locks, and what is in etcd meanwhile.
class LockTest < Support::Test
  def setup
    super
    @client = connect(owner: "billing")
  end

  def test_a_lock_has_the_fields_of_the_protocol
    before = Time.now.to_f
    released = nil
    result = @client.lock("a/b", purpose: "invoices", metadata: { ticket: 7 }) do |lock|
      released = lock
      fields = @etcd.keys.transform_keys { |key| key.delete_prefix("a/b/") }
      assert_equal %w[alert_at auto_unlock_at backtrace hostname locked_at owner pid purpose ticket uuid], fields.keys
      assert_equal [lock.uuid, "billing", "invoices", "7"], fields.values_at("uuid", "owner", "purpose", "ticket")
      locked_at = fields["locked_at"].to_f
      assert locked_at.between?(before - 0.001, Time.now.to_f)
      assert_in_delta 60, fields["alert_at"].to_f - locked_at, 0.01
      assert_in_delta 120, fields["auto_unlock_at"].to_f - locked_at, 0.01
      assert_match(/\A#{Regexp.escape(__FILE__)}:\d+:in .*test_a_lock_has_the_fields/, fields["backtrace"])
      assert_equal @etcd.key("a/b/uuid")["create_revision"].to_i, lock.token
      assert_nil lock.lost
      :result
    end
    assert_equal :result, result
    assert_empty @etcd.keys
    assert_equal :released, released.lost.reason
    released.unlock # again, which does nothing
    assert_raises(Lost) { released.check! }
  end

  def test_unlock_deletes_its_own_keys_only
    @etcd.put("a/b/uuid", "nested")
    @etcd.put("a/foreign", "x")
    @client.lock("a").unlock
    assert_equal({ "a/b/uuid" => "nested", "a/foreign" => "x" }, @etcd.keys)
  end

  def test_a_failed_lock_tells_the_holder
    @etcd.put("a/purpose", "left over by an earlier holder")
    held = @client.lock("a", patience: 100)
    [-> { @client.try_lock("a") }, -> { @client.lock("a", timeout: 5) }].each do |call|
      error = assert_raises(Held, &call)
      assert_equal ["a", held.uuid, "billing", nil], [error.holder.name, *error.holder.fields.values_at("uuid", "owner", "purpose")]
      assert_equal 100, error.holder.time("auto_unlock_at") - error.holder.time("locked_at")
      assert_match(/\Alock "a" is held by "billing" on ".*" pid "\d+" since \S+ until \S+\z/, error.message)
    end
  end

  def test_what_a_holder_wrote_cannot_break_a_line
    @etcd.put("a/uuid", "u")
    @etcd.put("a/owner", "x\n\e[31m#{'y' * 5000}")
    @etcd.put("a/locked_at", "9" * 400)
    error = assert_raises(Held) { @client.try_lock("a") }
    assert_match(/\A[[:print:]]{,400}\z/, error.message)
  end

  def test_a_waiter_gets_the_lock_at_its_release_without_polling
    first = @client.lock("a")
    before = @etcd.requests("Txn")
    waiter = Thread.new { [@client.lock("a"), now] }
    eventually { @etcd.requests("Watch") == 1 }
    sleep 1 # in which a client that polls sends requests
    assert_equal before + 2, @etcd.requests("Txn"), "one to try, one for its ticket"
    first.unlock
    released = now
    second, at = waiter.value
    assert_operator at - released, :<, 10
    assert_equal [before + 4, 1], [@etcd.requests("Txn"), @etcd.requests("Watch")]
    assert_operator second.token, :>, first.token
  end

  def test_a_wait_survives_compaction_and_a_restart_of_etcd
    first = @client.lock("a")
    waiter = Thread.new { @client.lock("a", timeout: 30) }
    eventually { @etcd.requests("Watch") == 1 }
    @etcd.restart
    @etcd.post("/v3/kv/compaction", revision: first.token.to_s)
    first.unlock
    assert_nil waiter.value.lost
  end

  def test_alive_moves_the_deadlines
    @client.lock("a", expect: 1, patience: 7) do |lock|
      sleep 1.5
      lock.alive("2 of 3", expect: 50, patience: 100)
      fields = @etcd.keys
      alive_at = fields["a/alive_at"].to_f
      assert_in_delta 50, fields["a/alert_at"].to_f - alive_at, 0.01
      assert_in_delta 100, fields["a/auto_unlock_at"].to_f - alive_at, 0.01
      assert_equal "2 of 3", fields["a/status"]
      assert_equal @etcd.key("a/alive_at")["mod_revision"], @etcd.key("a/auto_unlock_at")["mod_revision"]
      sleep 6 # until after its first deadline
      lock.check!
    end
    assert_empty @etcd.keys
  end

  def test_try_lock_all_takes_what_is_free_in_few_transactions
    names = Array.new(300) { |n| "n/#{n}" }
    held = %w[n/7 n/250].map { |name| @client.lock(name) }
    before = @etcd.requests("Txn")
    taken, others = @client.try_lock_all(names, metadata: { "batch" => "1" })
    assert_operator @etcd.requests("Txn") - before, :<=, 3
    assert_equal names - %w[n/7 n/250], taken.map(&:name)
    assert_equal(held.map { |lock| [lock.name, lock.uuid] }, others.map { |error| [error.holder.name, error.holder.fields["uuid"]] })
    assert_equal((taken + held).to_h { |lock| ["#{lock.name}/uuid", lock.uuid] }, @etcd.keys.select { |key, _| key.end_with?("/uuid") })
    @client.unlock_all(taken + held)
    assert_empty @etcd.keys
  end

  def test_transactions_stay_below_the_limits_of_etcd
    taken, = @client.try_lock_all(Array.new(60) { |n| "big #{n}" }, metadata: { text: "x" * 60_000, **(0...31).to_h { |n| [n.to_s, ""] } })
    assert_equal 60, taken.size
    @client.unlock_all(taken)
    assert_empty @etcd.keys
  end

  def test_the_stack_is_written_at_alert_at
    # In one line, which is where the holder stands at alert_at even if the answer took longer.
    line = __LINE__ + 1
    stack = @client.lock("a", expect: 0.3) { eventually { @etcd.keys["a/stack"] } }
    assert_includes stack, "#{__FILE__}:#{line}:in"
    @client.lock("b", expect: 0.1, backtrace: false) do
      sleep 0.5
      assert_empty @etcd.keys.keys & %w[b/stack b/backtrace]
    end
    assert_empty @etcd.keys
  end

  def test_a_holder_that_is_asked_answers_and_renews_nothing
    settle(0.1)
    lock = @client.lock("a", max_hold: 600)
    quiet = @client.lock("b", backtrace: false)
    lock.alive("7 of 9")
    sleep 1
    before = @etcd.keys.select { |key, _| key.start_with?("a/") }
    ask = ->(held) { @etcd.post("/v3/kv/put", key: Support.b64("/unlocker/ask/mutexes/#{held.name}//#{held.uuid}"), value: Support.b64("no JSON")) }
    ask.call(lock)
    asked = Time.now.to_f
    after = eventually { @etcd.keys.then { |keys| keys if keys["a/answered_at"] } }
    assert_operator Time.now.to_f - asked, :<, 2
    assert_in_delta asked, after["a/answered_at"].to_f, 2
    assert_includes after["a/stack"], "test_a_holder_that_is_asked"
    assert_equal "7 of 9", after["a/status"]
    assert_equal before, after.slice(*before.keys), "an answer is no renewal"
    refute_includes after, "b/answered_at", "it was not asked"
    20.times { ask.call(lock) }
    ask.call(quiet)
    eventually { @etcd.keys["b/answered_at"] }
    refute_includes @etcd.keys, "b/stack"
    assert_equal after["a/answered_at"], @etcd.keys["a/answered_at"], "at most one in five seconds"
    eventually { @etcd.keys["a/answered_at"] != after["a/answered_at"] }
    assert_equal "2", @etcd.post("/v3/kv/range", key: Support.b64("/mutexes/a/answered_at"))["kvs"][0]["version"], "one for all that was asked meanwhile"
    @client.unlock_all([lock, quiet])
    assert_empty @etcd.keys
  end

  def test_nonsense_is_refused
    { { patience: 0.5 } => "patience must be from 1", { expect: 0 } => "expect must be from 0.001",
      { expect: 5, patience: 4 } => "expect is more than patience, which needs max_hold",
      { slots: 0 } => "slots must be from 1 to 1000", { slots: "3" } => "slots must be", { slots: 1001 } => "slots must be",
      { max_hold: Float::NAN } => "max_hold must be from 1", { timeout: -1 } => "timeout must be at least 0",
      { metadata: { uuid: "x" } } => 'metadata "uuid" is a field of the protocol', { metadata: { "a/b" => "x" } } => 'metadata "a/b"',
      { metadata: { identity: "x" } } => 'metadata "identity" is a field of the protocol',
      { metadata: (0..32).to_h { |n| [n, ""] } } => "more than 32", { patient: 1 } => "unknown keyword" }.each do |options, message|
      assert_includes assert_raises(ArgumentError) { @client.lock("a", **options) }.message, message
    end
    ["", "/a", "a/", "a//b"].each { |name| assert_includes assert_raises(ArgumentError) { @client.lock(name) }.message, "is not a name" }
    assert_raises(ArgumentError, EncodingError) { @client.lock("\xff") }
    assert_includes assert_raises(ArgumentError) { @client.try_lock_all(%w[a a]) }.message, "twice"
    [[[[]], {}, "endpoints must be"], [["127.0.0.1:2379"], {}, "endpoints must be"], [[["ftp://x"]], {}, 'endpoint "ftp://x" is not'],
     [[], { prefix: "/x" }, "prefix must end with a slash"], [[], { request_timeout: 0 }, "request_timeout must be above 0"],
     [[], { ca_file: "/ca.pem" }, "need endpoints that begin with https"]].each do |arguments, options, message|
      assert_includes assert_raises(ArgumentError) { Client.new(*arguments, **options) }.message, message
    end
  end

  def test_locks_say_why_they_cannot_be_marshaled
    @client.lock("a") do |lock|
      assert_includes assert_raises(TypeError) { Marshal.dump(lock) }.message, 'lock "a" cannot be marshaled: only this process holds it'
      assert_includes assert_raises(TypeError) { Marshal.dump(@client) }.message, "Make one in the other process"
    end
  end

  def test_all_names_and_values_are_kept
    @client.lock("Grüße/ \n'\"", purpose: "日本") { assert_equal "日本", @etcd.keys["Grüße/ \n'\"/purpose"] }
  end

  def test_no_space
    @etcd.post("/v3/maintenance/alarm", action: "ACTIVATE", alarm: "NOSPACE")
    assert_predicate assert_raises(Refused) { @client.try_lock("a") }, :no_space?
  end

  def test_the_example_of_the_readme_runs
    example = File.read("#{__dir__}/../README.md")[/```ruby\n(.*?)```/m, 1].sub("http://127.0.0.1:2379", @etcd.url)
    out, = capture_io { TOPLEVEL_BINDING.dup.eval(example) }
    assert_match(/\A(sending A-\d with fencing token \d+\n){3}\z/, out)
  end

  # What the types say is checked at each call: clients/run.sh.
  def test_all_names_of_the_readme_have_types
    types = File.read("#{__dir__}/../sig/unlocker_mutex.rbs")
    rows = File.read("#{__dir__}/../README.md").scan(/^\| (.*?) \| .*/).join("\n")
    names = rows.scan(/\b(?:lock|client|lost)\.(\w+[?!]?)|(\w+):|`(\w+)`/).flatten.compact
    assert_operator names.size, :>, 30
    names.uniq.each { |name| assert_match(/(?:def |attr_reader |[?( ])#{Regexp.escape(name)}:/, types) }
  end

  def test_inspect_shows_no_password
    client = connect(user: "ada", password: "secret")
    lock = client.lock("a")
    assert_equal ['#<UnlockerMutex::Client "/mutexes/">', "#<UnlockerMutex::Lock \"a\" uuid #{lock.uuid} token #{lock.token}>"], [client, lock].map(&:inspect)
  end

  def test_the_daemon_removes_the_lock_of_a_holder_that_is_gone
    start(Support::Daemon.new(@etcd))
    dead = @client.lock("a", patience: 2, metadata: { ticket: 7 })
    @client.lock("kept", patience: 12, max_hold: 60) do |kept|
      @client.lock("a", timeout: 30) do |lock|
        assert_operator lock.token, :>, dead.token
        assert_predicate dead, :lost?, "lost before another holds it"
        assert_raises(Lost) { dead.unlock }
        assert_equal lock.uuid, @etcd.keys["a/uuid"]
      end
      kept.check!
    end
    assert_empty @etcd.keys
  end

  def test_a_loss_says_which_user_removed_the_lock
    command = [ENV.fetch("UNLOCKER"), "unlock", "a/b", "--etcd-endpoints", @etcd.url, "--yes", "--reason", "OPS-1", "--uuid"]
    error = assert_raises(Lost) { @client.lock("a/b") { |lock| assert system(*command, lock.uuid, out: File::NULL, err: File::NULL) } }
    assert_match(/forced: removed by "\S+@\S+", trigger "manual", because "OPS-1", at \S+\z/, error.message)
  end
end

# Losing locks.
class LossTest < Support::Test
  def test_the_keeper_renews_until_max_hold
    error = assert_raises(Lost) do
      connect.lock("a", patience: 6, max_hold: 15) do |lock|
        before = @etcd.keys
        eventually { @etcd.keys["a/auto_unlock_at"].to_f > before["a/auto_unlock_at"].to_f + 1 }
        lock.check!
        after = @etcd.keys
        assert_equal before["a/alert_at"], after["a/alert_at"]
        lost(lock)
        assert_operator @etcd.keys["a/auto_unlock_at"].to_f, :<=, before["a/locked_at"].to_f + 15.5 # a renewal more would add seconds; two clocks are read
      end
    end
    assert_equal :deadline, error.reason
    eventually { @etcd.keys.empty? }
  end

  def test_the_locks_of_a_client_are_renewed_in_one_transaction
    locks, = connect.try_lock_all(Array.new(100, &:to_s), patience: 8, max_hold: 60, backtrace: false)
    before = @etcd.requests("Txn")
    sleep 9 # three renewals, of which some are sent again on a busy machine
    assert(locks.none?(&:lost?))
    assert_operator @etcd.requests("Txn") - before, :<=, 12
  end

  def test_a_loss_is_noticed_with_its_reason
    client = connect
    { forced: -> { @etcd.delete("a/uuid") }, taken: -> { @etcd.put("a/uuid", "other") } }.each do |reason, change|
      lock = client.lock("a", patience: 9, max_hold: 60)
      change.call
      assert_equal reason, lost(lock)
      assert_raises(Lost) { lock.check! }
      assert_raises(Lost) { lock.unlock }
      @etcd.delete("a/uuid")
    end
    lock = client.lock("a", patience: 9, max_hold: 60)
    @etcd.post("/v3/maintenance/alarm", action: "ACTIVATE", alarm: "NOSPACE")
    assert_equal :no_space, lost(lock)
  end

  def test_alive_and_unlock_notice_a_loss
    client = connect
    %i[alive unlock].product([[:forced, -> { @etcd.delete("a/uuid") }], [:taken, -> { @etcd.put("a/uuid", "other") }]]).each do |call, (reason, change)|
      lock = client.lock("a")
      change.call
      assert_equal reason, assert_raises(Lost) { lock.public_send(call) }.reason
      @etcd.delete("a/uuid")
    end
  end

  def test_the_block_raises_what_happened_in_it
    client = connect
    assert_raises(KeyError) do
      client.lock("a") do
        @etcd.delete("a/uuid")
        raise KeyError
      end
    end
    assert_raises(Lost) { client.lock("a") { @etcd.delete("a/uuid") } }
    [1].each { client.lock("a") { break } }
    assert_empty(@etcd.keys.keys.grep(/uuid/))
  end

  def test_without_etcd_a_lock_is_lost_before_its_deadline
    lock = connect.lock("a", patience: 9, max_hold: 60)
    deadline = @etcd.keys["a/auto_unlock_at"].to_f
    @etcd.signal(:STOP)
    looked = Time.now.to_f
    until lock.lost? # each look after the deadline shows the loss
      assert_operator looked, :<, deadline
      sleep 0.02
      looked = Time.now.to_f
    end
    assert_equal :unreachable, lock.lost.reason
  end

  def test_a_process_that_was_suspended_knows_that_its_lock_is_lost
    code = <<~RUBY
      lock = UnlockerMutex::Client.new([ARGV[0]]).lock("a", patience: 6, max_hold: 60)
      $stdout.sync = true
      puts "locked"
      $stdin.gets
      puts lock.lost&.reason
    RUBY
    IO.popen([RbConfig.ruby, "-I#{File.expand_path('../lib', __dir__)}", "-runlocker_mutex", "-e", code, @etcd.url], "r+") do |process|
      assert_equal "locked\n", process.gets
      eventually { @etcd.keys.key?("a/alive_at") }
      sleep 1 # it has the answer, and renews again after a third of the patience
      Process.kill(:STOP, process.pid)
      sleep 6
      process.puts
      Process.kill(:CONT, process.pid)
      assert_equal "deadline\n", process.gets
    end
  end

  def test_a_wall_clock_that_passes_the_deadline_counts
    lock = connect.lock("a")
    later = Time.now + 115 # as after a suspension, in which the monotonic clock stops
    Time.stub(:now, later) { assert_equal :deadline, lock.lost.reason }
  end

  def test_the_keeper_does_not_renew_a_lock_that_was_lost_meanwhile
    lock = connect.lock("a", patience: 1, max_hold: 60)
    sleep 0.1 # until the keeper waits
    later = Time.now + 10 # as after a suspension
    Time.stub(:now, later) { eventually { lock.instance_variable_get(:@lost) } } # it looks instead of renewing
    assert_equal :deadline, lock.lost&.reason
  end

  def test_a_wall_clock_that_is_set_back_prolongs_nothing
    lock = connect.lock("a", patience: 1)
    Time.stub(:now, Time.at(0)) { lost(lock) }
  end

  def test_a_fork_shares_neither_connections_nor_renewals
    client = connect
    lock = client.lock("a", max_hold: 60)
    child = fork do
      100.times { client.lock("b", max_hold: 60).unlock }
      exit!(client.background.instance_variable_get(:@locks).key?(lock) ? 2 : 0)
    end
    100.times { lock.alive }
    assert_predicate Process.wait2(child)[1], :success?
    lock.unlock
  end

  def test_a_child_of_the_holder_holds_nothing
    connect.lock("a", max_hold: 60) do |lock|
      calls = [-> { lock.check! }, -> { lock.alive }, -> { lock.unlock }]
      children = calls.map do |call|
        fork do
          call.call
        rescue Lost => e
          exit!(e.reason == :forked && lock.lost.reason == :forked ? 0 : 2)
        else
          exit!(1)
        end
      end
      children << fork
      throw :left if children.last.nil? # leaves the block
      children.each { |child| assert_predicate Process.wait2(child)[1], :success? }
      assert_includes @etcd.keys, "a/uuid"
      refute_includes @etcd.keys, "a/alive_at"
    end
  rescue UncaughtThrowError
    exit!(0)
  end

  # What Puma and Sidekiq do: they get TERM, wait for the work for a while, and then raise in its threads.
  def test_term_releases_what_blocks_hold
    code = <<~RUBY
      client = UnlockerMutex::Client.new(ARGV)
      threads = %w[killed raised].map do |name|
        Thread.new do
          client.lock(name, max_hold: 600) { sleep }
        rescue Interrupt
          nil
        end
      end
      rest = client.lock("rest")
      at_exit { client.unlock_all([rest]) }
      client.lock("block") do
        client.lock("rest")
      ensure
        threads[1].raise(Interrupt)
        threads[1].join
      end
    RUBY
    process = Process.spawn(RbConfig.ruby, "-w", "-I#{File.expand_path('../lib', __dir__)}", "-runlocker_mutex", "-e", code, @etcd.url, err: File::NULL)
    eventually { @etcd.keys.keys.grep(/uuid/).size == 4 && @etcd.requests("Watch") == 1 }
    Process.kill(:TERM, process)
    assert_equal Signal.list["TERM"], Process.wait2(process)[1].termsig
    assert_empty @etcd.keys
  end

  def test_a_loss_is_reported_at_once_and_released_later
    lock = connect(request_timeout: 5).lock("a", patience: 1)
    @etcd.signal(:STOP)
    lost(lock)
    assert_equal :deadline, assert_raises(Lost) { within(0) { lock.unlock } }.reason
    @etcd.signal(:CONT)
    eventually { @etcd.keys.empty? }
  end

  def test_a_loss_is_reported_whatever_else_fails
    client = connect(request_timeout: 2)
    lost = client.lock("lost", patience: 1)
    held = client.lock("held")
    @etcd.signal(:STOP)
    lost(lost)
    error = assert_raises(Lost) { client.unlock_all([held, lost]) }
    assert_equal ["lost", :deadline], [error.name, error.reason]
    @etcd.signal(:CONT)
    eventually { @etcd.keys.empty? }
  end

  # Removes a lock, and leaves a record.
  def remove(lock, prefix = "/unlocker/audit/mutexes/", value: nil, **record)
    record = { uuid: lock.uuid, when: "2026-11-23T10:00:00.123456789Z", trigger: "expiry", replica: "host_1", **record }
    @etcd.delete("#{lock.name}/uuid")
    @etcd.post("/v3/kv/put", key: b64("#{prefix}#{lock.name}//#{lock.token}"), value: b64(value || JSON.generate(record)))
  end

  def test_a_loss_says_who_removed_the_lock
    client = connect(audit_prefix: "/audit")
    said = "lock \"a\" is lost: forced: removed by %s at 2026-11-23T10:00:00Z"
    error = assert_raises(Lost) do
      client.lock("a") do |lock|
        remove(lock, "/audit/", verdict: { reason: "patience" })
        lock.alive
      end
    end
    assert_equal format(said, 'replica "host_1", trigger "expiry", rule "patience",'), error.message
    error = assert_raises(Lost) do
      client.lock("a") { |lock| remove(lock, "/audit/", trigger: "manual", replica: 1, who: "ada@host", reason: "\e[2J#{'y' * 9999}") }
    end
    assert_equal format(said, "\"ada@host\", trigger \"manual\", because \"\\e[2J#{'y' * 196}\","), error.message
    assert_equal 4096, error.removal.why.size
  end

  def test_a_record_is_found_later_and_where_it_is_by_default
    lock = connect.lock("x#{'ü' * 256}")
    @etcd.delete("#{lock.name}/uuid")
    error = assert_raises(Lost) { lock.alive }
    refute_includes error.message, "removed"
    writer = Thread.new do
      sleep 0.5
      record = { uuid: lock.uuid, when: "2026-11-23T10:00:00Z", who: "ada" }
      @etcd.post("/v3/kv/put", key: b64("/unlocker/audit/mutexes/x#{'ü' * 255}…//#{lock.token}"), value: b64(JSON.generate(record)))
    end
    assert_equal "ada", error.removal.who
    assert_includes error.message, 'removed by "ada", at'
    writer.join
  end

  def test_what_is_not_the_record_of_a_removal_is_ignored
    client = connect
    [{ uuid: "other" }, { when: nil }, { when: "9" * 400 }, { value: "[1]" }, { value: "{\"uuid\": #{'[' * 30_000}" }, { why: "y" * 33_000 }].each do |record|
      lock = client.lock("a")
      remove(lock, **record)
      error = assert_raises(Lost) { lock.alive }
      assert_nil error.removal
      assert_equal 'lock "a" is lost: forced', error.message
    end
  end

  def test_records_are_read_after_a_removal_only_and_not_for_long
    client = connect
    reads = 0
    client.define_singleton_method(:read) { |*arguments| (reads += 1) && super(*arguments) }
    lock = client.lock("deadline", patience: 1)
    assert_equal :deadline, lost(lock)
    assert_nil lock.lost.removal
    lock = client.lock("b")
    lock.alive
    lock.unlock
    assert_nil lock.lost.removal
    lock = client.lock("b")
    @etcd.delete("b/uuid")
    error = assert_raises(Lost) { lock.alive }
    %i[check! unlock].each { |call| assert_raises(Lost) { lock.public_send(call) } }
    assert_equal 0, reads
    @etcd.signal(:STOP)
    within(2) { assert_nil error.removal }
    assert_nil error.removal
    assert_equal 1, reads
  end

  def test_another_history_of_etcd_is_a_loss
    # Another cluster; and one that was set back.
    { "@cluster" => "1", "@token" => @etcd.revision + 1000 }.each do |variable, value|
      %i[alive unlock].each do |call|
        lock = connect.lock("a#{call}#{value}")
        lock.instance_variable_set(variable, value)
        assert_equal :restored, assert_raises(Lost) { lock.public_send(call) }.reason
      end
    end
  end
end

# An answer that is lost is asked for again, and what it said is known.
class AnswersTest < Support::Test
  def setup
    super
    @proxy = start(Support::Proxy.new(@etcd.port))
    @client = connect(@proxy.url)
  end

  def test_lock
    @proxy.lose = 1
    lock = @client.try_lock("a")
    assert_equal 1, @proxy.lost
    key = @etcd.key("a/uuid")
    assert_equal [key["create_revision"].to_i, "1"], [lock.token, key["version"]]
    lock.check!
    @proxy.lose = 1
    assert_raises(Held) { @client.try_lock("a") }
  end

  def test_many
    held = @client.lock("n7")
    @proxy.lose = 1
    taken, others = @client.try_lock_all(Array.new(150) { |n| "n#{n}" })
    assert_equal [1, 149, [held.uuid]], [@proxy.lost, taken.size, others.map { |error| error.holder.fields["uuid"] }]
    @proxy.lose = 1
    @client.unlock_all([*taken, held])
    assert_equal [2, {}], [@proxy.lost, @etcd.keys]
  end

  def test_alive
    lock = @client.lock("a")
    @proxy.lose = 1
    lock.alive("half", patience: 500)
    assert_equal 1, @proxy.lost
    fields = @etcd.keys
    assert_in_delta 500, fields["a/auto_unlock_at"].to_f - fields["a/alive_at"].to_f, 0.01
    lock.alive
    @etcd.put("a/auto_unlock_at", "1700000000") # by an operator
    lock.alive
    assert_operator @etcd.keys["a/auto_unlock_at"].to_f, :>, Time.now.to_f + 400
  end

  def test_unlock
    lock = @client.lock("a")
    @proxy.lose = 1
    lock.unlock
    assert_equal [1, {}], [@proxy.lost, @etcd.keys]
  end

  def test_a_waiter_recognizes_a_lock_that_a_late_attempt_takes
    @client.lock("a")
    SecureRandom.stub(:uuid, "own") do
      waiter = Thread.new { @client.lock("a") }
      eventually { @etcd.requests("Watch") == 1 }
      @etcd.put("a/uuid", "own")
      assert_equal "own", waiter.join(30)&.value&.uuid
    end
  end

  def test_a_shorter_patience_counts_without_an_answer
    lock = connect(@proxy.url, request_timeout: 2).lock("a")
    @proxy.lose = 1000 # etcd executes the renewal
    assert_raises(Lost, Unreachable) { lock.alive(patience: 1, expect: 1) }
    lost(lock)
    assert_operator Time.now.to_f, :<, @etcd.keys["a/auto_unlock_at"].to_f + 2
  end

  def test_what_a_late_attempt_takes_is_released
    [0, 3].each do |timeout|
      proxy = start(Support::Proxy.new(@etcd.port))
      proxy.hold = true
      held = connect.lock("b")
      client = connect(proxy.url, @etcd.url, request_timeout: 2)
      lock = client.lock("a", timeout: 0)
      client.instance_variable_get(:@etcd).instance_variable_set(:@current, 0)
      assert_raises(Held) { client.lock("b", timeout: timeout) }
      lock.unlock
      held.unlock
      assert_empty @etcd.keys
      before = @etcd.revision
      proxy.hold = false
      eventually { @etcd.revision > before } # an attempt was executed
      sleep 0.2
      eventually { @etcd.keys.empty? }
    end
  end

  def test_a_late_renewal_does_not_bring_back_its_deadline
    lock = @client.lock("a")
    late = lock.renewal(Time.now.to_f, 1, true, nil) # sent, and on its way
    lock.alive
    deadline = @etcd.keys["a/auto_unlock_at"]
    refute_includes @etcd.post("/v3/kv/txn", late), "succeeded"
    assert_equal deadline, @etcd.keys["a/auto_unlock_at"]
  end

  def test_a_lock_that_a_failed_call_has_taken_is_released
    client = connect(@proxy.url, request_timeout: 2)
    @proxy.lose = 1_000_000
    before = @etcd.revision
    [-> { client.try_lock("a") }, -> { client.lock("b", timeout: 2) }, -> { client.try_lock_all(["c"]) }].each do |call|
      assert_raises(Unreachable) { within(2, &call) }
    end
    @proxy.lose = 0
    assert_operator @etcd.revision - before, :>=, 3
    eventually { @etcd.keys.empty? }
  end

  def test_a_release_that_failed_is_tried_again
    client = connect
    lock = client.lock("a")
    hurry(client, 0.5)
    @etcd.signal(:STOP)
    assert_raises(Unreachable) { lock.unlock }
    @etcd.signal(:CONT)
    eventually { @etcd.keys.empty? }
  end
end

# Losing members, logins and time.
class EndpointsTest < Support::Test
  def test_time_outs_hold
    client = connect
    patient = connect
    patient.lock("held")
    own = client.lock("own")
    hurry(client, 0.6)
    assert_raises(Held) { within(3) { patient.lock("held", timeout: 3) } }
    assert_raises(Held, Unreachable) { within(0.01) { patient.lock("held", timeout: 0.01) } } # etcd may take longer
    proxy = start(Support::Proxy.new(@etcd.port))
    waiter = connect(proxy.url)
    waiting = Thread.new { assert_raises(Held) { within(6) { waiter.lock("held", timeout: 6) } } }
    eventually { proxy.seen.include?('"created":true') }
    @etcd.signal(:STOP)
    [-> { client.try_lock("x") }, -> { client.lock("x", timeout: 0.3) }, -> { client.try_lock_all(["x"]) }, -> { own.alive }].each do |call|
      assert_raises(Unreachable) { within(0.6, &call) }
    end
    waiting.join
  end

  def test_an_answer_that_trickles_does_not_prolong_a_time_out
    server = TCPServer.new("127.0.0.1", 0)
    thread = Thread.new do
      loop do
        connection = server.accept
        "HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n#{' ' * 10_000}".each_char do |char|
          connection.write(char)
          sleep 0.01
        end
      rescue SystemCallError
        connection.close
      end
    end
    client = connect("http://127.0.0.1:#{server.addr[1]}", request_timeout: 0.5)
    assert_raises(Unreachable) { within(0.5) { client.try_lock("a") } }
  ensure
    thread.kill
    server.close
  end

  def test_a_wait_that_ends_between_two_attempts_without_an_answer_says_so
    slow = Class.new(Unreachable) { def cause = sleep(0.2) && super }
    client = connect
    client.instance_variable_get(:@etcd).define_singleton_method(:send_all) { |*| raise slow, "etcd does not answer" }
    assert_raises(Unreachable) { client.lock("a", timeout: 0.2) }
  end

  def test_another_endpoint_is_asked_when_one_fails
    stopped = start(Support::Etcd.new)
    stopped.signal(:STOP)
    client = connect("127.0.0.1:#{free_port}", stopped.url, @etcd.url, request_timeout: 18)
    lock = within(10) { client.lock("a") } # after a third of its time-out
    within(1) { lock.alive } # it stays with the one that answers
    proxy = Support::Proxy.new(@etcd.port)
    waiter = connect(proxy.url, @etcd.url)
    waiter.try_lock("b").unlock
    thread = Thread.new { waiter.lock("a", timeout: 30) }
    eventually { @etcd.requests("Watch") == 1 }
    proxy.kill
    eventually { @etcd.requests("Watch") == 2 }
    lock.unlock
    thread.value.check!
  end

  def test_an_etcd_that_does_not_answer_says_why
    tls = start(Support::Etcd.new(tls: true))
    elsewhere = "http://127.0.0.1:#{free_port}"
    none = start(Support::Etcd.new("--enable-grpc-gateway=false", gateway: false))
    moved = start(Support::Etcd.new("--listen-client-http-urls", elsewhere, gateway: false))
    garbage = TCPServer.new("127.0.0.1", 0)
    server = Thread.new do
      loop do
        connection = garbage.accept
        connection.readpartial(1 << 16)
        connection.write("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n\e[2J\xff#{'y' * 9999}")
      rescue IOError, SystemCallError
        nil # who connected has given up
      ensure
        connection&.close
      end
    end
    cases = {
      /Connection refused/ => "127.0.0.1:#{free_port}", /certificate verify failed[^:]*\z/ => tls.url,
      %r{may require https://} => tls.url.sub("https", "http"), /may not use TLS/ => @etcd.url.sub("http", "https"),
      /--enable-grpc-gateway\): HTTP 404: 404 page not found\z/ => none.url, /elsewhere: see its --listen-client-http-urls/ => moved.url,
      /HTTP 200: \\e\[2J\ufffdy{100,}\z/ => "http://127.0.0.1:#{garbage.addr[1]}"
    }
    cases.flat_map { |message, url| [0, 2].map { |timeout| Thread.new { says(message, url, timeout) } } }.each(&:join)
    TCPSocket.stub(:open, ->(*) { raise SocketError, "getaddrinfo: Name or service not known" }) { says(/nowhere.example:2379.* not known/, "nowhere.example", 2) }
    connect(elsewhere).lock("a").unlock
  ensure
    server.kill
    garbage.close
  end

  # The last of many attempts has no time left.
  def says(message, url, timeout)
    options = message.source.include?("may not use") ? { ca_file: "#{ENV.fetch('CERTS')}/ca.pem" } : {}
    eventually("no error of #{url} says #{message}") do # a busy machine may time out first
      error = assert_raises(Unreachable) { connect(url, request_timeout: 1.5, **options).lock("a", timeout: timeout) }
      assert_match(/\A[[:print:]]{,600}\z/, error.message)
      error.message.match?(message) && error.cause
    end
  end

  def test_https_with_client_certificates
    certs = ENV.fetch("CERTS")
    own = { cert_file: "#{certs}/client.pem", key_file: "#{certs}/client.key" }
    etcd = start(Support::Etcd.new(tls: true))
    client = connect(etcd.url, ca_file: "#{certs}/ca.pem", **own)
    client.lock("a") do
      assert_includes etcd.keys, "a/uuid"
      assert_raises(Held) { client.lock("a", timeout: 5) }
    end
    { { ca_file: "#{certs}/other.pem", **own } => /certificate verify failed/, { ca_file: "#{certs}/ca.pem" } => /certificate required|bad certificate|reset|EOF|end of file|Broken pipe/,
      { ca_file: "#{certs}/ca.pem", server_name: "etcd.example.org", **own } => /match/ }.each do |options, message|
      eventually("no error says #{message}") do # a busy machine may time out first
        assert_raises(Unreachable) { connect(etcd.url, request_timeout: 4, **options).try_lock("a") }.message.match?(message)
      end
    end
    assert_raises(ArgumentError) { connect(etcd.url, ca_file: "#{certs}/none.pem") }
  end

  def test_a_login_is_renewed
    @etcd = start(Support::Etcd.new("--auth-token-ttl", "1"))
    client = connect(user: "ada", password: "secret")
    first = client.lock("a", patience: 12, max_hold: 60) # while authentication is off
    guard("/unlocker/waiters/")
    first.alive
    waiter = Thread.new { client.lock("a", timeout: 30) }
    sleep 6 # the token has expired, and renewals have passed
    first.check!
    first.unlock
    within(6) { waiter.value.unlock }
  end

  # etcd neither accepts nor refuses one until its raft log is as long again.
  def test_a_token_from_before_a_restore_is_replaced
    100.times { @etcd.put("x/y", "") }
    guard("/unlocker/waiters/")
    client = connect(user: "ada", password: "secret")
    client.lock("a").unlock
    etcd = client.instance_variable_get(:@etcd)
    etcd.instance_variable_set(:@attempt, 1)
    @etcd.kill
    @etcd.run
    @etcd.ready
    guard("/unlocker/waiters/")
    assert_raises(Unreachable) { client.lock("a", timeout: 3) } # it has just logged in, and etcd may be slow
    etcd.instance_variable_set(:@login, -Float::INFINITY)
    within(6) { client.lock("a", timeout: 20).unlock }
    token = etcd.instance_variable_get(:@token)
    etcd.instance_variable_set(:@login, -Float::INFINITY)
    @etcd.signal(:STOP)
    assert_raises(Unreachable) { client.lock("a", timeout: 4) }
    @etcd.signal(:CONT)
    assert_operator etcd.instance_variable_get(:@login), :>, 0, "no login was tried"
    assert_equal token, etcd.instance_variable_get(:@token), "it may be good, and etcd was only slow"
  end

  def test_the_gateway_refuses_certificates_with_a_name_once_authentication_is_enabled
    certs = ENV.fetch("CERTS")
    @etcd = start(Support::Etcd.new(tls: true))
    guard("/unlocker/waiters/")
    with = ->(name, **options) { connect(ca_file: "#{certs}/ca.pem", cert_file: "#{certs}/#{name}.pem", key_file: "#{certs}/#{name}.key", **options) }
    [{}, { user: "ada", password: "secret" }].each do |options|
      error = assert_raises(Refused) { within(6) { with.call("client", **options).lock("a") } }
      assert_includes error.message, "client certificates with a CN: use one without, and user and password"
    end
    with.call("nameless", user: "ada", password: "secret").lock("a").unlock
    assert_match(/permission denied|user name is empty/, assert_raises(Refused) { within(6) { with.call("nameless").lock("a") } }.message)
  end

  def test_wrong_logins_are_refused_at_once
    guard
    { { user: "ada", password: "wrong" } => "authentication failed", { user: "ada", password: "secret", prefix: "/other/" } => "permission denied",
      {} => "user name is empty" }.each do |options, message|
      assert_output("", "") do
        assert_includes assert_raises(Refused) { within(6) { connect(**options).lock("a") } }.message, message
      end
    end
  end
end
