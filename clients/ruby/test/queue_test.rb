# frozen_string_literal: true

require_relative "support"

# A queue for the lock "a".
class LineTest < Support::Test
  WAITERS = "/unlocker/waiters/mutexes/"

  def setup
    super
    @client = connect(owner: "billing")
    @served = Queue.new
    @threads = []
    replace(:TICKET, 3 * Support::SOON) # no ticket vanishes by itself
  end

  def teardown
    @threads.each(&:kill).each(&:join)
    constants.each { |name, value| replace(name, value) }
    super
  end

  def constants
    @constants ||= {}
  end

  # Replaces a constant of the module until the test ends.
  def replace(name, value)
    constants[name] ||= UnlockerMutex.send(:remove_const, name).tap { UnlockerMutex.const_set(name, value) }
    UnlockerMutex.send(:remove_const, name)
    UnlockerMutex.const_set(name, value)
  end

  # What the tickets of a name say, in their order, with their keys and leases.
  def tickets(name = "a")
    found = @etcd.post("/v3/kv/range", key: b64("#{WAITERS}#{name}//"), range_end: b64("#{WAITERS}#{name}/0"), sort_target: "CREATE")
    (found["kvs"] || []).map { |kv| { "key" => kv["key"].unpack1("m"), "lease" => kv["lease"], **JSON.parse(kv["value"].unpack1("m")) } }
  end

  # Adds a waiter, and returns when it has its ticket.
  def join(who, client = connect, **options)
    before = tickets.size
    @threads << Thread.new { @served << [who, client.lock("a", **options)] }
    eventually { tickets.size > before }
  end

  def release(*locks)
    locks.each(&:unlock)
  end

  # Requires that waiters get the lock in this order.
  def serves(holder, *order)
    order.each do |who|
      holder.unlock
      served, holder = eventually { @served.pop(true) rescue nil }
      assert_equal who, served
    end
    holder.unlock
    assert_empty tickets
  end

  # A process that waits for the lock, and prints its pid when it has it.
  def waiting_process
    code = 'UnlockerMutex::Client.new([ARGV[0]]).lock("a") { puts Process.pid }'
    before = tickets.size
    process = start(Support::Program.new(RbConfig.ruby, "-I#{File.expand_path('../lib', __dir__)}", "-runlocker_mutex", "-e", code, @etcd.url))
    eventually { tickets.size > before }
    process
  end
end

# Waiting in order, and slots.
class QueueTest < LineTest
  def test_a_lock_that_is_free_costs_one_request
    before = @etcd.requests("Txn")
    lock = @client.lock("a")
    assert_equal before + 1, @etcd.requests("Txn")
    lock.unlock
    assert_equal [0, 0], [@etcd.requests("LeaseGrant"), @etcd.requests("Watch")]
  end

  def test_waiters_are_served_in_their_order
    %i[PASS GLANCE].each { |name| replace(name, 1e6) } # by events alone
    [nil, 3].each do |slots|
      holders = Array.new(slots || 1) { @client.lock("a", slots: slots) }
      5.times { |who| join(who, slots: slots) }
      assert_equal 1, tickets.map { |it| it["slots"] }.uniq.size
      serves(holders.pop, 0, 1, 2, 3, 4)
      release(*holders)
    end
    assert_empty @etcd.keys
  end

  def test_waiters_of_other_clients_are_in_the_same_queue
    replace(:PASS, 1e6)
    [nil, 2].each do |slots|
      holders = Array.new(slots || 1) { @client.lock("a", slots: slots) }
      order = Thread::Queue.new
      run = lambda do |who|
        before = tickets.size
        command = [ENV.fetch("UNLOCKER"), "lock", "a", "--etcd-endpoints", @etcd.url, *(["--slots", slots.to_s] if slots), "--", "echo", who.to_s]
        @threads << Thread.new { order << IO.popen(command, &:read).to_i }
        eventually { tickets.size > before }
      end
      run.call(1)
      join(2, slots: slots)
      run.call(3)
      join(4, slots: slots)
      holders.pop.unlock
      2.times do |n|
        assert_equal (2 * n) + 1, order.pop
        who, lock = @served.pop
        assert_equal (2 * n) + 2, who
        lock.unlock
      end
      release(*holders)
    end
  end

  def test_a_holder_that_locks_again_is_the_last
    holder = @client.lock("a")
    join(1)
    holder.unlock
    first = @served.pop[1]
    join(2)
    join(3, @client)
    serves(first, 2, 3)
  end

  def test_a_waiter_that_hangs_is_passed_over
    holder = @client.lock("a")
    hanging = waiting_process
    join(1)
    join(2)
    hanging.signal(:STOP)
    released = now
    holder.unlock
    who, holder = within(2) { @served.pop }
    assert_equal 1, who
    assert_operator now - released, :>=, 1
    assert_equal 1, tickets.size, "its ticket is gone"
    hanging.signal(:CONT)
    eventually { tickets.size == 2 } # it queues again
    join(3)
    holder.unlock
    who, holder = @served.pop
    assert_equal 2, who
    holder.unlock
    assert_equal 3, @served.pop[0]
    hanging.wait
    refute_empty File.read(hanging.log.path)
  end

  # Nor do tickets that no process has.
  def test_waiters_that_hang_together_block_nobody
    4.times { |n| @etcd.post("/v3/kv/put", key: b64("#{WAITERS}a//\xff#{n}"), value: b64("{}")) }
    replace(:SILENCE, 1)
    assert_includes assert_raises(Held) { @client.lock("a", timeout: 0.5) }.message, 'lock "a" has other waiters'
    @client.lock("a").unlock
    eventually { tickets.size == 3 }
  end

  def test_a_waiter_is_passed_over_once
    3.times { |n| @etcd.post("/v3/kv/put", key: b64("#{WAITERS}a//#{n}"), value: b64("{}")) }
    replace(:SILENCE, 0.2)
    passed = nil
    delete = -> { @etcd.post("/v3/kv/deleterange", key: b64("#{WAITERS}a//0")) }
    @client.instance_variable_get(:@etcd).define_singleton_method(:send_all) do |txns, *rest, &block|
      passing = txns.any? { |txn| txn[:success].count { |request| request[:requestDeleteRange] } > 1 }
      passed ||= delete.call && Support.now if passing # which another does first
      super(txns, *rest, &block)
    end
    @client.lock("a")
    assert_operator now - passed, :>, 0.9
    assert_equal ["#{WAITERS}a//2"], tickets.map { |ticket| ticket["key"] }
  end

  def test_a_release_before_the_watch_has_begun_is_not_missed
    [nil, 2].each do |slots|
      holders = Array.new(slots || 1) { @client.lock("a", slots: slots) }
      client = connect
      client.instance_variable_get(:@etcd).define_singleton_method(:watch) do |*arguments, &block|
        holders.pop&.unlock
        super(*arguments, &block)
      end
      client.lock("a", slots: slots).unlock
      release(*holders)
    end
  end

  def test_giving_up_deletes_the_ticket
    holder = @client.lock("a")
    own = connect
    join(0)
    giving_up = Thread.new { assert_raises(Held) { own.lock("a", timeout: 3) } }
    eventually { tickets.size == 2 }
    join(2)
    assert_equal holder.uuid, giving_up.value.holder.fields["uuid"]
    eventually { tickets.size == 2 }
    eventually { own.tickets.instance_variable_get(:@thread).nil? }
    thread = Thread.new { own.lock("a") }
    eventually { tickets.size == 3 }
    thread.kill.join # by which Puma and Sidekiq end waits
    eventually { tickets.size == 2 }
    serves(holder, 0, 2)
  end

  def test_a_lease_is_kept_alive_during_waits
    holder = @client.lock("a")
    own = connect
    replace(:TICKET, 4)
    waits = Array.new(2) { |n| Thread.new { assert_raises(Held) { own.lock("a", timeout: 8 + n) } } }
    eventually { tickets.size == 2 }
    lease, other = tickets.map { |ticket| ticket["lease"] }
    assert_equal lease, other, "one for all waits of a client"
    sleep 6 # longer than it lives without
    assert_equal [lease, lease], tickets.map { |ticket| ticket["lease"] }
    waits.each(&:join)
    eventually { @etcd.post("/v3/lease/timetolive", ID: lease)["TTL"] == "-1" }
    holder.unlock
  end

  def test_a_waiter_that_has_lost_its_ticket_queues_again
    3.times do |lost|
      holder = @client.lock("a")
      3.times { |who| join(who) }
      ticket = tickets[lost]
      lost == 1 ? @etcd.post("/v3/lease/revoke", ID: ticket["lease"]) : @etcd.post("/v3/kv/deleterange", key: b64(ticket["key"]))
      eventually { tickets.size == 3 }
      assert_equal ticket["uuid"], tickets.last["uuid"]
      serves(holder, *([0, 1, 2] - [lost]), lost)
    end
  end

  def test_a_client_without_tickets_takes_what_is_free
    holder = @client.lock("a")
    2.times { |who| join(who) }
    other = Thread.new { plain.lock("a") }
    eventually { @etcd.requests("Watch") >= 3 }
    @etcd.put("a/uuid", "taken") # in the moment of the release
    assert_raises(Lost) { holder.unlock }
    @etcd.delete("a/uuid")
    served = [other, *Array.new(2) { Thread.new { @served.pop[1] } }].map { |thread| Thread.new { thread.value.unlock } }
    served.each(&:join)
    assert_empty tickets
    assert_empty(@etcd.keys.keys.grep(/uuid/))
    @etcd.post("/v3/kv/put", key: b64("#{WAITERS}a//t"), value: b64("{}"))
    @client.try_lock("a").unlock
  end

  # A client that does without tickets.
  def plain
    connect.tap { |client| client.instance_variable_set(:@plain_until, Float::INFINITY) }
  end

  def test_a_waiter_without_tickets_does_not_try_when_it_sees_the_next_holder
    first = @client.lock("a")
    replace(:LAST, 4) # for the answer that tells the holder
    replace(:JITTER, 1e6) # so that it tries late, and the next holder comes before it also on a busy machine
    waiter = Thread.new { assert_raises(Held) { plain.lock("a", timeout: 12) } }
    eventually { @etcd.requests("Watch") == 1 }
    before = @etcd.requests("Txn")
    first.unlock
    @etcd.put("a/uuid", "other")
    sleep 4
    assert_equal before + 1, @etcd.requests("Txn")
    assert_equal "other", waiter.value.holder.fields["uuid"]
  end

  def test_without_the_right_to_tickets_it_waits_in_no_order_and_says_so_once
    client = connect(user: "ada", password: "secret")
    guard
    working = Hash.new(0)
    most = Hash.new(0)
    _, said = capture_io do
      holder = client.lock("a")
      threads = [nil, 2].product([0] * 4).map do |slots, _|
        Thread.new do
          client.lock(slots ? "s" : "a", slots: slots) do
            most[slots] = [most[slots], working[slots] += 1].max
            sleep 0.1
            working[slots] -= 1
          end
        end
      end
      eventually { @etcd.requests("Watch") >= 5 }
      holder.unlock
      threads.each(&:join)
    end
    assert_equal({ nil => 1, 2 => 2 }, most)
    assert_match(%r{\Aunlocker_mutex: no tickets under /unlocker/waiters/mutexes/: .*permission denied: .*\n\z}, said)
  end

  def test_tickets_are_tried_again
    replace(:PLAIN, 0.1)
    replace(:SILENCE, 0.2)
    client = connect(user: "ada", password: "secret", waiters_prefix: "/w")
    root = connect(user: "root", password: "root")
    guard
    holder = waiter = nil
    _, said = capture_io do
      holder = client.lock("a")
      SecureRandom.stub(:uuid, "own") do
        waiter = Thread.new { client.lock("a").unlock }
        eventually { @etcd.requests("Watch") >= 3 }
      end
    end
    assert_equal 1, said.lines.size
    assert_empty root.read("/w/a//own", now + SOON)
    right = { name: "ada", perm: { permType: "READWRITE", key: b64("/w/"), range_end: b64("/w0") } }
    root.instance_variable_get(:@etcd).send(:call, "/v3/auth/role/grant", right, now + SOON, SOON)
    eventually { root.read("/w/a//own", now + SOON).any? }
    holder.unlock
    waiter.join
    assert_empty root.read("/w/a//own", now + SOON)
  end

  def test_without_leases_it_waits_in_no_order
    holder = @client.lock("a")
    refused = ->(*) { raise Refused.new(8, "etcdserver: mvcc: database space exceeded") }
    _, said = capture_io do
      @client.instance_variable_get(:@etcd).stub(:grant, refused) do
        threads = Array.new(3) { Thread.new { @client.lock("a").unlock } }
        eventually { @etcd.requests("Watch") == 3 }
        holder.unlock
        threads.each(&:join)
      end
    end
    assert_equal 1, said.lines.size
    assert_includes said, "database space exceeded"
    assert_empty tickets
  end

  def test_a_ticket_says_who_waits_and_what_it_holds
    holder = @client.lock("a", slots: 1)
    since = Time.now
    other = Thread.new { @client.lock("moved", max_hold: 60) }.value
    @client.lock("handed over")
    waiter = Thread.new do
      @client.lock("released").unlock
      @client.lock("outer") do |outer|
        moved = @client.lock("inner")
        other.alive
        Fiber.new { @client.lock("of a fiber") }.resume
        @client.lock("a", slots: 1, purpose: "\xffinvoices\u0001#{'y' * 5000}".b) { [other.uuid, outer.uuid, moved.uuid] }
      end
    end
    ticket = eventually { tickets[0] }
    assert_equal ["billing", Process.pid.to_s, Socket.gethostname, 1], ticket.values_at("owner", "pid", "hostname", "slots")
    assert_match(/\A\ufffdinvoices\u0001y{240}\z/, ticket["purpose"])
    assert_in_delta since.to_f, Time.iso8601(ticket["since"]).to_f, 5
    assert_equal "#{WAITERS}a//#{ticket['uuid']}", ticket["key"]
    holder.unlock
    assert_equal waiter.value, ticket["holds"]
  end

  def test_a_ticket_has_at_most_64_locks
    holder = @client.lock("a")
    @threads << Thread.new do
      @client.try_lock_all(Array.new(70) { |n| "n#{n}" })
      @client.lock("a")
    end
    assert_equal 64, eventually { tickets[0] }["holds"].size
    holder.unlock
  end

  def test_slots
    requests = @etcd.requests("Txn")
    locks = Array.new(3) { @client.lock("a/b", slots: 3) }
    assert_equal requests + 6, @etcd.requests("Txn"), "one to read, one to take"
    assert_equal %w[a/b/0 a/b/1 a/b/2], locks.map(&:name).sort
    assert(locks.all? { |lock| @etcd.keys["#{lock.name}/uuid"] == lock.uuid })
    [-> { @client.try_lock("a/b", slots: 3) }, -> { @client.lock("a/b", slots: 3, timeout: 0.5) }].each do |call|
      error = assert_raises(Held, &call)
      assert_match(%r{\Athe 3 slots of "a/b" are held, one of them by "billing" on}, error.message)
      assert_match(%r{\Aa/b/[012]\z}, error.holder.name)
    end
    locks[1].unlock
    assert_equal locks[1].name, @client.try_lock("a/b", slots: 3, &:name)
    assert_includes assert_raises(ArgumentError) { @client.lock("a//", slots: 2) }.message, 'name "a//" is not a name'
    @client.unlock_all(locks)
    (0...1000).each_slice(100) { |some| @etcd.post("/v3/kv/txn", success: (some - [321]).map { |n| { requestPut: { key: b64("/mutexes/many/#{n}/uuid"), value: b64("u") } } }) }
    requests = @etcd.requests("Txn")
    assert_equal "many/321", @client.lock("many", slots: 1000).name
    assert_equal requests + 2, @etcd.requests("Txn")
  end

  def test_at_most_so_many_have_a_slot
    working = 0
    most = []
    mutex = Thread::Mutex.new
    threads = Array.new(12) do
      client = connect
      Thread.new do
        3.times do
          client.lock("a", slots: 3) do
            mutex.synchronize { most << (working += 1) }
            eventually { most.max >= 3 } # the first two wait for a third
            sleep rand * 0.05
            mutex.synchronize { working -= 1 }
          end
        end
      end
    end
    threads.each(&:join)
    assert_equal [3, 36], [most.max, most.size]
    assert_empty @etcd.keys
    assert_empty tickets
  end

  def test_slots_that_are_freed_at_once_wake_as_many_waiters
    %i[PASS GLANCE].each { |name| replace(name, 1e6) } # by events alone
    holders = Array.new(3) { @client.lock("a", slots: 3) }
    4.times { |who| join(who, slots: 3) }
    @client.unlock_all(holders)
    locks = Array.new(3) { eventually { @served.pop(true) rescue nil } }
    assert_equal [0, 1, 2], locks.map(&:first).sort
    assert_equal 1, tickets.size
    release(*locks.map(&:last))
    @served.pop[1].unlock
  end

  def test_a_child_shares_no_ticket
    holder = @client.lock("a")
    join(0, @client)
    lease = tickets[0]["lease"]
    child = fork do
      waits = @client.tickets.instance_variable_get(:@waits)
      @client.lock("b")
      begin
        @client.lock("b", timeout: 1)
      rescue Held
        exit!(waits.empty? ? 0 : 1)
      end
    end
    own = eventually { tickets("b")[0] }["lease"]
    assert_predicate Process.wait2(child)[1], :success?
    refute_equal lease, own
    assert_equal [lease], tickets.map { |ticket| ticket["lease"] }
    serves(holder, 0)
  end

  def test_the_end_of_a_process_with_waiters_is_silent
    @client.lock("a")
    code = <<~RUBY
      client = UnlockerMutex::Client.new([ARGV[0]])
      3.times { Thread.new { client.lock("a") } }
      $stdin.gets
      Thread.list.find { |thread| thread.name == "unlocker-mutex-tickets" }.kill.join # as Ruby does, before the others or after them
    RUBY
    command = [RbConfig.ruby, "-w", "-I#{File.expand_path('../lib', __dir__)}", "-runlocker_mutex", "-e", code, @etcd.url]
    IO.popen(command, "r+", err: %i[child out]) do |process|
      eventually { tickets.size == 3 }
      process.close_write
      assert_empty process.read
    end
  end
end

# Attempts without an answer.
class LateTest < LineTest
  def setup
    super
    @proxy = start(Support::Proxy.new(@etcd.port))
  end

  def test_answers_that_are_lost_leave_neither_tickets_nor_locks
    [nil, 2].each do |slots|
      working = 0
      most = []
      waiters = Array.new(5) do
        client = connect(@proxy.url)
        Thread.new do
          4.times do
            client.lock("a", slots: slots) do
              most << (working += 1)
              sleep rand * 0.05
              working -= 1
            end
          end
        end
      end
      lost = @proxy.lost
      while waiters.any?(&:alive?)
        sleep rand * 0.1
        @proxy.lose = 1
      end
      @proxy.lose = 0
      waiters.each(&:join)
      assert_operator @proxy.lost, :>, lost
      assert_equal [slots || 1, 20], [most.max, most.size]
      eventually { @etcd.keys.empty? && tickets.empty? }
    end
  end

  def test_a_late_attempt_in_turn_is_refused
    client = connect(@proxy.url, @etcd.url, request_timeout: 2)
    lock = eventually do # what is held may also be a request of before the turn: then the client takes its turn elsewhere
      @proxy.hold = false
      holder = @client.lock("a")
      client.instance_variable_get(:@etcd).instance_variable_set(:@current, 0)
      join(0, client)
      @proxy.hold = true
      holder.unlock
      served = @served.pop[1] # by the other endpoint
      served.unlock
      served if served.left?
    end
    eventually { lock.late == 1 }
    assert_empty [*@etcd.keys, *tickets]
    revision = @etcd.revision
    before = @etcd.requests("Txn")
    @proxy.hold = false
    eventually { @etcd.requests("Txn") > before }
    assert_equal revision, @etcd.revision
  end

  def test_what_a_late_attempt_of_a_waiter_leaves_is_deleted
    holder = @client.lock("a")
    client = connect(@proxy.url, request_timeout: 2)
    waiter = Thread.new { assert_raises(Held, Unreachable) { client.lock("a", timeout: 4) } }
    eventually { tickets.any? }
    @proxy.hold = true
    holder.unlock
    waiter.join
    assert_equal 1, tickets.size
    revision = @etcd.revision
    @proxy.hold = false
    eventually { @etcd.revision > revision && @etcd.keys.empty? && tickets.empty? }
  end

  def test_a_ticket_that_is_put_late_is_deleted
    @client.lock("a")
    @client.lock("b")
    client = connect(@proxy.url, @etcd.url, request_timeout: 2)
    @threads << Thread.new { client.lock("b") } # which keeps the lease alive
    eventually { tickets("b").any? }
    client.instance_variable_get(:@etcd).instance_variable_set(:@current, 0)
    @proxy.hold = true
    assert_raises(Held) { client.lock("a", timeout: 3) }
    eventually { tickets.empty? }
    @proxy.hold = false
    eventually { tickets.any? }
    eventually { tickets.empty? }
    assert_equal 1, tickets("b").size
  end
end
