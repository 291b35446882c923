# frozen_string_literal: true

require "json"
require "net/http"
require "openssl"
require "securerandom"
require "socket"
require "time"
require "timeout"
require "uri"

# Locks in etcd for several machines, by protocol 1 of unlocker (docs/protocol.md).
#
#   client = UnlockerMutex::Client.new(["https://etcd-1:2379", "https://etcd-2:2379"], ca_file: "ca.pem")
#   client.lock("billing/invoices", timeout: 30, purpose: "invoices of November") do |lock|
#     invoices.each_with_index do |invoice, n|
#       lock.check!                                   # raises Lost
#       invoice.write(fencing_token: lock.token)
#       lock.alive("invoice #{n} of #{invoices.size}")
#     end
#   end
#
# A holder that dies leaves its lock behind; the daemon, unlocker, removes it after its patience.
#
# Guaranteed: every call ends in time, name resolution excepted. An answer that was lost never leads
# to a second lock, nor to a lock that is held without its caller knowing: the call is repeated with
# the same uuid. A lock reports its loss before its deadline by the monotonic and by the wall clock,
# so also after the process was suspended. Only keys of one's own are written and deleted.
#
# Not guaranteed: that work stops when the lock is lost. Call check! before each step, and send the
# token to the resource that the lock protects. A manual unlock is noticed at the next renewal only.
#
# A Client may be used by several threads, and after a fork. A Lock may be handed to another
# thread. Times are seconds.
module UnlockerMutex
  VERSION = "0.1.0"

  EXPECTED = %w[uuid hostname locked_at alert_at auto_unlock_at alive_at owner purpose pid status].freeze
  FIELDS = [*EXPECTED, "backtrace", "stack", "answered_at"].freeze
  RESERVED = [*FIELDS, "identity"].freeze # by which a Go client may take its own lock again
  MAX_OPS = 128 # etcd's --max-txn-ops, which counts each level of nested transactions
  MAX_BYTES = 1 << 20 # below etcd's --max-request-bytes of 1.5 MiB
  MAX_TEXT = 4 << 10 # of owner, purpose, status, backtrace and stack
  MAX_VALUE = 64 << 10 # of metadata
  MAX_RECORD = 32 << 10 # of a removal
  YEAR = 366 * 86_400
  IDLE = 10 # for which a connection is kept: less than what balancers and firewalls allow
  SILENCE = 60 # after which a watch without an event is replaced
  JITTER = 0.02 # over which the waiters for one lock spread when it is released
  LAST = 0.2 # before the end of a wait, when a waiter tries again if the holder has changed
  RETRY = 1 # between two renewals if the first one failed
  ATTEMPT = 5.0 # for which a request may be on its way: the daemon counts on it
  RENEWAL = 100 # between two renewals at most: the daemon's patience ends after five minutes
  LONGEST = 10 # between two attempts to release what late attempts have taken
  ANSWER = 5 # between two answers of a lock to questions, whoever asks
  SETTLED = 0.5 # for which a lock is held before its client listens to questions
  DEAF = 600 # between two attempts to listen without the right to
  EXPLAIN = 2 # for which the record of a removal is looked for: the daemon writes it some milliseconds after the removal
  private_constant(*(constants - [:VERSION]))

  # The base of all errors of this module.
  class Error < StandardError
    # Attempts of the failed call that may have been executed, or may be executed late.
    attr_writer :unanswered # :nodoc:

    def unanswered # :nodoc:
      @unanswered || 0
    end
  end

  # No endpoint answered in time. What was asked for may have been done. The text has the last reason that is not a
  # time-out, if there is one; cause is that exception.
  class Unreachable < Error; end

  # etcd refused the request.
  class Refused < Error
    # The gRPC status code.
    attr_reader :code

    def initialize(code, message)
      super(message)
      @code = code
    end

    # Reports whether etcd has reached its quota.
    def no_space?
      message.include?("database space exceeded")
    end
  end

  # The lock is no longer held.
  class Lost < Error
    # The name of the lock.
    attr_reader :name
    # :forced (it was removed by force), :taken (and another holds it), :deadline (it was not renewed
    # in time), :unreachable or :no_space (so renewals failed), :restored (etcd was set back to an
    # earlier state), :forked (this process is a child of the holder), or :released.
    attr_reader :reason

    def initialize(name, reason, &read)
      super("lock #{name.inspect} is lost: #{reason}")
      @name = name
      @reason = reason
      @read = read if %i[forced taken].include?(reason) # nil also after it was read
      @removal = nil
    end

    # Reads from etcd, once and for up to two seconds, who removed the lock, for the text of the error, too.
    # Returns a Removal, or nil without a record.
    def removal
      read = @read
      @removal = read.call || @removal if read # another thread may have read it
      @read = nil
      @removal
    end

    def to_s # :nodoc:
      @removal ? "#{super}: removed #{@removal}" : super
    end
  end

  # Another holder has the lock.
  class Held < Error
    # The Holder.
    attr_reader :holder

    def initialize(holder)
      super("lock #{holder.name.inspect} is held by #{holder}")
      @holder = holder
    end
  end

  # The record of who holds a lock, as the holder wrote it: untrusted text. fields is a Hash.
  Holder = Struct.new(:name, :fields) do
    # A timestamp by the holder's clock, such as locked_at or auto_unlock_at; nil if it is missing or unreadable.
    def time(field)
      text = fields[field].to_s[0, 64]
      text.include?("T") ? Time.iso8601(text) : Time.at(Float(text)).utc
    rescue ArgumentError, RangeError # FloatDomainError is one
      nil
    end

    # One line for logs and for people.
    def to_s
      words = { "owner" => "", "hostname" => "on ", "pid" => "pid ", "purpose" => "for ", "status" => "at " }.filter_map do |field, word|
        word + fields[field][0, 200].inspect if fields[field]
      end
      { "since" => "locked_at", "until" => "auto_unlock_at" }.each { |word, field| words << "#{word} #{time(field).iso8601}" if time(field) }
      words.empty? ? "an unknown holder" : words.join(" ")
    end
  end

  # What a record in etcd says about a removal: bounded, untrusted text, safe to print by to_s. trigger is
  # "expiry", "orphan" or "manual".
  Removal = Struct.new(:at, :trigger, :replica, :rule, :who, :why) do
    # One line for logs and for people.
    def to_s
      words = { "by" => who, "by replica" => replica, "trigger" => trigger, "rule" => rule, "because" => why }
      [*words.filter_map { |word, text| "#{word} #{text[0, 200].inspect}" unless text.empty? }, "at #{at.iso8601}"].join(", ")
    end

    # Returns nil if the text is not a record of the removal of the uuid.
    def self.parse(text, uuid) # :nodoc:
      record = JSON.parse(text) if text.bytesize <= MAX_RECORD
      return unless record.is_a?(Hash) && record["uuid"] == uuid

      rule = record["verdict"]["reason"] if record["verdict"].is_a?(Hash)
      texts = [*record.values_at("trigger", "replica"), rule, *record.values_at("who", "reason")]
      new(Time.iso8601(record["when"].to_s[0, 64]).utc, *texts.map { |it| it.is_a?(String) ? it.scrub.byteslice(0, MAX_TEXT).scrub("") : "" })
    rescue ArgumentError, RangeError, JSON::ParserError
      nil
    end
  end

  # What the caller asked for, checked and completed.
  class Terms # :nodoc:
    attr_reader :expect, :patience, :max_hold, :backtrace, :fields

    def initialize(expect: nil, patience: nil, max_hold: nil, owner: "", purpose: "", metadata: {}, backtrace: true)
      @patience = patience || (max_hold ? 120 : [120, 2 * (expect || 0)].max)
      @expect = expect || [60, @patience / 2.0].min
      @max_hold = max_hold
      @backtrace = backtrace
      { expect: [@expect, 0.001], patience: [@patience, 1], max_hold: [max_hold || 1, 1] }.each do |option, (seconds, least)|
        raise ArgumentError, "#{option} must be from #{least} to #{YEAR} seconds, not #{seconds}" unless seconds >= least && seconds <= YEAR
      end
      raise ArgumentError, "expect is more than patience, which needs max_hold" if @expect > @patience && !max_hold
      raise ArgumentError, "metadata has more than 32 fields" if metadata.size > 32

      @fields = { "owner" => owner[0, MAX_TEXT], "purpose" => purpose[0, MAX_TEXT], **metadata.to_h { |name, value| pair(name.to_s, value.to_s) } }
    end

    # The time until auto_unlock_at of a lock that has been held for so long.
    def length(held = 0)
      max_hold ? [patience, max_hold - held].min : patience
    end

    private

    def pair(name, value)
      return [name, value] if name.length.between?(1, 64) && !name.include?("/") && !RESERVED.include?(name) && value.length <= MAX_VALUE

      raise ArgumentError, "metadata #{name.inspect} is a field of the protocol, not the name of a field, or above #{MAX_VALUE} characters"
    end
  end
  private_constant :Terms

  # Small functions of the others.
  module Helpers # :nodoc:
    module_function

    def monotonic
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    def stamp(seconds)
      format("%.3f", seconds)
    end

    def b64(text)
      [text].pack("m0")
    end

    def text(encoded)
      encoded.unpack1("m").force_encoding(Encoding::UTF_8).scrub
    end

    def put(key, value)
      { requestPut: { key: b64(key), value: b64(value) } }
    end

    def get(key)
      { requestRange: { key: b64(key) } }
    end

    # Untrusted text, bounded and in one line.
    def shown(text)
      text.byteslice(0, 500).force_encoding(Encoding::UTF_8).scrub.inspect[1..-2].gsub('\\"', '"')
    end

    # Which of two failures says more: the last one, unless it is a time-out.
    def telling(first, last)
      first && [Timeout::Error, Errno::ETIMEDOUT, Etcd::Overdue].any? { |kind| last.cause.is_a?(kind) } ? first : last
    end

    # The stack of a thread without the frames of this file, innermost first, of which the start is kept.
    def stack(frames)
      return "the thread that locked has ended" unless frames

      frames.drop_while { |frame| frame.start_with?("#{__FILE__}:") }.join("\n")[0, MAX_TEXT].scrub
    end

    # When a holder gives up a lock: early, to stop before another can hold it.
    def ends(start, patience)
      start + patience - [5, patience / 10.0].min
    end
  end
  private_constant :Helpers

  # The answer to one transaction. unanswered are the attempts before it, which may have been executed, or may be executed late.
  Answer = Struct.new(:txn, :revision, :cluster, :unanswered) do # :nodoc:
    include Helpers

    def succeeded?
      txn["succeeded"]
    end

    # The value, create revision and mod revision of each key that the transaction has read.
    def found
      pairs = (txn["responses"] || []).flat_map { |response| response.dig("response_range", "kvs") || [] }
      pairs.to_h { |kv| [text(kv["key"]), [text(kv["value"] || ""), kv["create_revision"].to_i, kv["mod_revision"].to_i]] }
    end
  end
  private_constant :Answer

  # A lock that is held until it is released or lost. Client makes it; several threads may use it.
  class Lock
    include Helpers

    attr_reader :name, :uuid
    # The fencing token: it grows with each acquisition of the name.
    attr_reader :token
    # What the client looks at.
    attr_reader :terms, :acquired_at, :renewing, :thread, :deadline, :process # :nodoc:
    attr_accessor :alert_at, :renew_at # :nodoc:
    attr_reader :answer_at # :nodoc:
    # holding: the lock may be in etcd, by an attempt that was answered. late: attempts to take it that
    # were not answered, and may be executed late.
    attr_accessor :holding, :late # :nodoc:

    def initialize(client, name, terms) # :nodoc:
      unless name.encode("UTF-8").valid_encoding? && "#{name}/".split("/", -1)[..-2].all?(/./m)
        raise ArgumentError, "name #{name.inspect} is not a name: it is not UTF-8, or empty, or has an empty segment"
      end

      @client = client
      @name = name.encode("UTF-8")
      @terms = terms
      @uuid = SecureRandom.uuid
      @backtrace = terms.backtrace ? stack(caller) : ""
      @process = Process.pid
      @holding = false
      @late = @token = 0
      @expires = 0 # when the last deadline that was sent passes
      @started = {} # monotonic time of each attempt, by its locked_at
      @written = []
      @thread = Thread.current
      @renewing = Mutex.new # held during a renewal
      @mutex = Mutex.new # guards the end and the deadlines
      @trouble = :deadline # what the loss will be put down to if no renewal goes through
      @deadline = @wall_deadline = @acquired_at = 0
      @renew_at = @alert_at = @answer_at = Float::INFINITY
      @answered = -Float::INFINITY
      @status = nil
    end

    # Why the lock is lost or released, as a Lost; nil while it is held. It asks the clocks, not etcd, so it costs nothing.
    def lost
      return Lost.new(name, :forked) unless @process == Process.pid

      @mutex.synchronize do
        @lost ||= (Lost.new(name, @trouble) if monotonic >= @deadline || Time.now.to_f >= @wall_deadline)
      end
    end

    # Reports whether the lock is lost or released.
    def lost?
      !lost.nil?
    end

    # Raises Lost unless the lock is held. It asks the clocks, not etcd, so it costs nothing.
    def check!
      raise lost if lost
    end

    # Moves the deadlines forward: expect and patience are seconds from now, and stay for the next calls.
    # status says in words how far the work is. Raises Lost if the lock is lost, and Unreachable or
    # Refused if the renewal failed: the lock is then held until its deadline, so try again. A shorter
    # patience counts also then, since etcd may have it.
    def alive(status = nil, expect: nil, patience: nil)
      check!
      @renewing.synchronize do
        @terms = Terms.new(expect: expect || terms.expect, patience: patience || terms.patience, max_hold: terms.max_hold, backtrace: terms.backtrace)
        @thread = Thread.current
        @status = status[0, MAX_TEXT] if status
        @client.renew([self], status: status)
      ensure
        @client.background.add(self)
      end
      check!
    rescue Unreachable, Refused
      check!
      raise
    end

    def marshal_dump # :nodoc:
      raise TypeError, "lock #{name.inspect} cannot be marshaled: only this process holds it. Pass the token, or lock in the other process"
    end

    # Without what it refers to: the client has the password, and all locks.
    def inspect # :nodoc:
      "#<#{self.class} #{name.inspect} uuid #{uuid} token #{token}>"
    end

    # Releases the lock. Raises Lost if it was lost before, and Unreachable or Refused if that is not
    # known: the release is then tried again in the background. So is that of a lost lock, which is
    # reported at once. Does nothing if the lock is released already.
    def unlock
      @client.unlock_all([self])
    end

    # The transaction that takes the lock or shows who has it.
    def acquisition # :nodoc:
      now = Time.now.to_f
      fields = { "uuid" => uuid, "hostname" => Socket.gethostname, "pid" => Process.pid.to_s, "locked_at" => stamp(now),
                 "alert_at" => stamp(now + terms.expect), "auto_unlock_at" => stamp(now + terms.length),
                 "backtrace" => @backtrace, **terms.fields }.reject { |_, value| value.empty? }
      @started.delete_if { |_, at| at < monotonic - terms.patience }
      @started[fields["locked_at"]] = monotonic
      @expires = monotonic + terms.length
      @written = fields.keys
      { compare: [{ target: "VERSION", result: "EQUAL", key: b64(key("uuid")), version: "0" }],
        success: fields.map { |field, value| put(key(field), value) }, failure: EXPECTED.map { |field| get(key(field)) } }
    end

    # Reads the answer of an acquisition, and returns the holder if it is another one.
    def acquired(answer) # :nodoc:
      revision = answer.revision
      at, began = @started.max_by(&:last)
      @late += answer.unanswered
      unless answer.succeeded?
        found = answer.found
        value, created = found.fetch(key("uuid"), ["", 0])
        fields = EXPECTED.select { |field| found[key(field)] && found[key(field)][2] >= created }.to_h { |field| [field, found[key(field)][0]] }
        return Holder.new(name, fields) unless value == uuid

        # An answer was lost. That attempt took the lock.
        @late -= 1
        revision = created
        at, began = @started.assoc(fields["locked_at"]) || [at, began]
      end
      @holding = true
      @cluster = answer.cluster
      @token = @revision = revision # @revision is that of auto_unlock_at
      @acquired_at = began
      granted(began, at.to_f, terms.length, true)
      @client.background.add(self)
      nil
    end

    # Notes the deadlines that a transaction has written, as of the time before it was sent.
    def granted(began, wall, patience, alert) # :nodoc:
      @mutex.synchronize do
        @deadline = ends(began, patience)
        @wall_deadline = ends(wall, patience)
        more = terms.max_hold && began + patience < acquired_at + terms.max_hold
        @renew_at = more ? began + [patience / 3.0, RENEWAL].min : Float::INFINITY
        @trouble = :deadline
        @alert_at = terms.backtrace ? began + terms.expect : Float::INFINITY if alert
      end
    end

    # Notes the deadlines of a renewal that is about to be sent: earlier ones count from now, since etcd may have them without an answer.
    def asked(began, wall, patience) # :nodoc:
      @mutex.synchronize do
        @deadline = [@deadline, ends(began, patience)].min
        @wall_deadline = [@wall_deadline, ends(wall, patience)].min
        @expires = [@expires, began + patience].max
        @renew_at = [@renew_at, began + patience / 3.0].min if @renew_at.finite?
      end
    end

    def renewal(wall, patience, alert, status) # :nodoc:
      fields = { "auto_unlock_at" => stamp(wall + patience), "alive_at" => stamp(wall) }
      fields["alert_at"] = stamp(wall + terms.expect) if alert
      fields["status"] = status[0, MAX_TEXT] if status
      txn = if_mine(fields.map { |field, value| put(key(field), value) }, "uuid", "auto_unlock_at")
      # An attempt without an answer may be executed late. It must not bring back its deadline after that of a later one.
      txn[:compare] << { target: "MOD", result: "EQUAL", key: b64(key("auto_unlock_at")), mod_revision: @revision.to_s }
      txn
    end

    # Reports whether the lock was renewed, and ends it if it is lost. Otherwise its deadline was moved, such as by an attempt without an answer.
    def renewed?(answer) # :nodoc:
      reason = missing(answer)
      finish(reason) if reason
      @revision = answer.succeeded? ? answer.revision : answer.found.fetch(key("auto_unlock_at"), ["", 0, 0])[2]
      answer.succeeded? && !reason
    end

    def removal # :nodoc:
      if_mine((@written | FIELDS).map { |field| { requestDeleteRange: { key: b64(key(field)) } } }, "uuid")
    end

    # What the holder does now. The answer to a question has more, and is no renewal.
    def note(now) # :nodoc:
      fields = terms.backtrace ? { "stack" => stack(thread.backtrace) } : {}
      if answer_at <= now
        fields["status"] = @status if @status
        fields["answered_at"] = stamp(Time.now.to_f)
        @answer_at = Float::INFINITY
        @answered = now
      end
      if_mine(fields.map { |field, value| put(key(field), value) })
    end

    # Has a question answered.
    def ask(now) # :nodoc:
      @answer_at = [now, @answered + ANSWER].max
    end

    # Why the lock is lost, by the answer of a transaction that has compared the uuid, and reads it otherwise.
    def missing(answer) # :nodoc:
      return :restored if answer.cluster != @cluster || answer.revision < token # others may have taken the lock before, or after
      return if answer.succeeded?

      value, = answer.found[key("uuid")]
      @holding = value == uuid
      value ? (:taken unless @holding) : :forced
    end

    # Reports whether something in etcd is to be released, or may be.
    def left? # :nodoc:
      @holding || (@late.positive? && monotonic < @expires)
    end

    # Ends the lock, unless it has ended already, and returns the first reason.
    def finish(reason) # :nodoc:
      @mutex.synchronize { @lost ||= loss(reason) }
    end

    def loss(reason) # :nodoc:
      Lost.new(name, reason) { record }
    end

    def failed(error) # :nodoc:
      @mutex.synchronize { @trouble = error.is_a?(Refused) && error.no_space? ? :no_space : :unreachable }
    end

    def key(field) # :nodoc:
      "#{@client.prefix}#{name}/#{field}"
    end

    private

    # Reads the record of the removal until it is there, and gives up at the first error.
    def record
      key = "#{@client.audit}#{name.bytesize > 512 ? "#{name.byteslice(0, 512).scrub('')}…" : name}//#{token}"
      end_at = monotonic + EXPLAIN
      pause = 0.02
      while (found = @client.read(key, end_at)).empty? && monotonic + pause < end_at
        sleep(pause)
        pause *= 2
      end
      Removal.parse(found.values[0][0], uuid) if found.any?
    rescue Unreachable, Refused
      nil
    end

    def if_mine(requests, *otherwise)
      mine = { target: "VALUE", result: "EQUAL", key: b64(key("uuid")), value: b64(uuid) }
      { compare: [mine], success: requests, failure: otherwise.map { |field| get(key(field)) } }
    end
  end

  # Takes locks. It connects when it is first used, and may be used by several threads.
  class Client
    include Helpers

    attr_reader :prefix, :audit, :questions # :nodoc:

    # endpoints are URLs or host:port of etcd members; the next one is asked when one fails. owner is
    # the default of its locks, which is otherwise the name of the script. request_timeout bounds
    # each transaction, with all its attempts. audit_prefix is where the daemon keeps records of removals
    # (see Lost#removal), /unlocker/audit followed by the prefix by default. ask_prefix is where unlocker ask asks the
    # holders of locks, /unlocker/ask followed by the prefix by default: a thread listens there while locks are held,
    # and answers with the stack and the last status. Without the right to read there it warns once, and the rest works.
    def initialize(endpoints = ["127.0.0.1:2379"], user: "", password: "", ca_file: nil, cert_file: nil, key_file: nil, server_name: nil,
                   prefix: "/mutexes/", owner: File.basename($PROGRAM_NAME), request_timeout: 5, audit_prefix: "/unlocker/audit#{prefix}", ask_prefix: "/unlocker/ask#{prefix}")
      raise ArgumentError, "endpoints must be an array of at least one URL" unless endpoints.is_a?(Array) && !endpoints.empty?
      raise ArgumentError, "prefix must end with a slash: #{prefix.inspect}" unless prefix.end_with?("/")
      raise ArgumentError, "request_timeout must be above 0, not #{request_timeout}" unless request_timeout.positive?

      @prefix = prefix
      @audit = "#{audit_prefix.delete_suffix('/')}/"
      @questions = "#{ask_prefix.delete_suffix('/')}/"
      @owner = owner
      @timeout = request_timeout
      @etcd = Etcd.new(endpoints, user, password, { ca_file: ca_file, cert_file: cert_file, key_file: key_file, server_name: server_name }, request_timeout)
      @background = Background.new(self, @etcd)
    end

    # Times are seconds. Takes a lock, and waits for it for up to timeout; nil is without limit, 0 is try_lock. With a
    # block it yields the lock, releases it afterwards, and returns what the block does; it then
    # raises Lost if the lock was lost meanwhile, unless the block raises something else.
    #
    # expect:: the expected runtime, 60 by default: past it an alert fires, and the present stack of
    #          the thread that locked or renewed last is written to the lock
    # patience:: how long the lock lasts after the last renewal: 120 by default, or twice expect if
    #            that is more and there is no max_hold
    # max_hold:: a background thread renews the lock until then, and does not put off the alert
    # owner:: the name of the service, that of the client by default
    # purpose:: what the lock is for
    # metadata:: further fields, a Hash
    # backtrace:: false: write neither the stack at the call nor the one at the alert
    #
    # Waiting sends no requests, and returns when the lock is released. Waiters are served in no particular
    # order. It waits for etcd, too. Raises Held with the holder when timeout is over, Unreachable if
    # etcd does not answer then, and Refused if it does not accept the request.
    def lock(name, timeout: nil, **terms, &block)
      raise ArgumentError, "timeout must be at least 0, not #{timeout}" unless timeout.nil? || timeout >= 0

      lock = Lock.new(self, name, Terms.new(owner: @owner, **terms))
      holder = releasing([lock]) do
        timeout&.zero? ? attempt(lock)[0] : wait(lock, timeout ? monotonic + timeout : Float::INFINITY)
      end
      if holder
        background.release(lock)
        raise Held, holder
      end

      block ? hold(lock, &block) : lock
    end

    # Takes a lock if it is free, as lock does, or raises Held with the holder.
    def try_lock(name, **terms, &block)
      lock(name, timeout: 0, **terms, &block)
    end

    # Takes those of the locks that are free, about a hundred with each transaction. Returns an array
    # of them, and one of Held for the others. The options are those of lock, in seconds. Raises
    # Unreachable or Refused; then it holds none of them.
    def try_lock_all(names, **terms)
      terms = Terms.new(owner: @owner, **terms)
      locks = names.map { |name| Lock.new(self, name, terms) }
      raise ArgumentError, "names has a name twice" if locks.uniq(&:name).size < locks.size

      taken = []
      held = []
      releasing(locks) do
        @etcd.send_all(locks.map(&:acquisition)) do |n, answer|
          holder = locks[n].acquired(answer)
          holder ? held << Held.new(holder) : taken << locks[n]
        end
      end
      (locks - taken).each { |lock| background.release(lock) }
      [taken, held]
    end

    # Releases several locks as Lock#unlock does, in few transactions. Raises the first Lost, or
    # Unreachable or Refused.
    def unlock_all(locks)
      lost = locks.to_h { |lock| [lock, lock.lost] }.compare_by_identity
      errors = lost.values.compact.reject { |error| error.reason == :released }
      held = locks.uniq.select { |lock| lock.holding && (lost[lock].nil? || lost[lock].reason == :released) }
      held.each { |lock| lock.finish(:released) }
      begin
        @etcd.send_all(held.map(&:removal)) do |n, answer|
          lock = held[n]
          lock.holding = false
          reason = lock.missing(answer)
          # After an attempt without an answer, a lock that is not there is the one that it removed.
          errors << lock.loss(reason) if reason && lost[lock].nil? && answer.unanswered.zero?
        end
      rescue Unreachable, Refused
        raise if errors.empty?
      ensure
        locks.each { |lock| background.release(lock) }
      end
      raise errors[0] if errors.any?
    end

    def marshal_dump # :nodoc:
      raise TypeError, "a Client cannot be marshaled: it has connections and threads. Make one in the other process"
    end

    def inspect # :nodoc:
      "#<#{self.class} #{prefix.inspect}>"
    end

    # Closes the idle connections. It releases no locks, and the client may be used again.
    def close
      @etcd.close
    end

    # Renews locks, and ends those that turn out to be lost. The caller holds renewing of each.
    def renew(locks, limit: @timeout, kept: false, status: nil) # :nodoc:
      end_at = monotonic + [limit, @timeout].min
      until locks.empty?
        began = monotonic
        wall = Time.now.to_f
        # max_hold does not bound the renewals that the holder asks for.
        patience = locks.map { |lock| kept ? lock.terms.length(began - lock.acquired_at) : lock.terms.patience }
        locks.zip(patience) { |lock, p| lock.asked(began, wall, p) }
        end_at = [end_at, locks.map(&:deadline).max].min # afterwards they are lost
        again = []
        begin
          @etcd.send_all(locks.zip(patience).map { |lock, p| lock.renewal(wall, p, !kept, status) }, end_at, patience.min / 6.0) do |n, answer|
            if locks[n].renewed?(answer)
              locks[n].granted(began, wall, patience[n], !kept)
            elsif !locks[n].lost?
              again << locks[n]
            end
          end
        rescue Error => e
          locks.each { |lock| lock.failed(e) }
          raise
        end
        locks = again
      end
    end

    # The value and the revisions of a key, by the key; empty if it is not there.
    def read(key, end_at) # :nodoc:
      @etcd.send_all([{ success: [get(key)], failure: [] }], end_at) { |_, answer| return answer.found }
    end

    # A thread does not survive a fork, and the locks of the parent are not ours.
    def background # :nodoc:
      @background = Background.new(self, @etcd) unless @background.process == Process.pid
      @background
    end

    private

    def hold(lock)
      error = nil
      begin
        yield lock
      rescue Exception => error
        raise
      ensure
        begin
          lock.unlock
        rescue Error => e
          raise e unless error
        end
      end
    rescue Lost => e
      e.removal if e.name == lock.name # for its text
      raise
    end

    # Releases what a failed call has taken, or may take late.
    def releasing(locks)
      done = false
      unanswered = 1
      result = yield
      done = true
      result
    rescue Error => e
      unanswered = e.unanswered
      raise
    ensure
      unless done
        locks.each do |lock|
          lock.late += unanswered unless lock.holding
          background.release(lock)
        end
      end
    end

    # Tries to take the lock once. Returns who has it otherwise, and the revision to wait from.
    def attempt(lock, end_at = Float::INFINITY)
      result = nil
      @etcd.send_all([lock.acquisition], end_at) { |_, answer| result = [lock.acquired(answer), answer.revision] }
      result
    end

    def wait(lock, end_at)
      pause = 0.05
      failed = nil
      loop do
        watched = false
        begin
          holder, revision = attempt(lock, end_at)
          return nil unless holder

          failed = nil
          watched = @etcd.watch(lock.key("uuid"), lock.uuid, revision, end_at)
          return holder if monotonic >= end_at
        rescue Unreachable => e
          failed = telling(failed, e)
          raise failed.tap { |error| error.unanswered = e.unanswered } if monotonic >= end_at

          lock.late += e.unanswered
        end
        pause = watched ? 0.05 : [2 * pause, RETRY].min
        sleep([[pause * rand(0.5..1.0), end_at - monotonic].min, 0].max) unless watched
      end
    end
  end

  # The thread of a client that renews locks with max_hold, writes stacks at alert_at, and releases
  # what a failed call may have left. It starts when there is work, and ends some seconds after the
  # last of it.
  class Background # :nodoc:
    include Helpers

    attr_reader :process

    def initialize(client, etcd)
      @client = client
      @etcd = etcd
      @process = Process.pid
      @mutex = Mutex.new
      @changed = ConditionVariable.new
      @locks = {}.compare_by_identity
      @leftovers = {}.compare_by_identity # when the next attempt is due, and the pause after it
      @wakes = Float::INFINITY
    end

    # Looks after the lock until it ends. To be called again when its times have moved.
    def add(lock)
      @mutex.synchronize do
        @locks[lock] = true
        nudge([lock.renew_at, lock.alert_at].min)
        next if @ear&.alive?

        @ear = Thread.new { listen }
        @ear.name = "unlocker-mutex-questions"
      end
    end

    # Releases the lock, if it is held, as soon as etcd allows it, and what late attempts take.
    def release(lock)
      return unless lock.process == Process.pid

      lock.finish(:released)
      @mutex.synchronize do
        next if @leftovers[lock] || !lock.left?

        @leftovers[lock] = [0, JITTER]
        nudge(0)
      end
    end

    private

    def nudge(at)
      if !@thread&.alive?
        @thread = Thread.new { run }
        @thread.name = "unlocker-mutex"
      elsif at < @wakes
        @changed.signal
      end
    end

    def run
      loop do
        locks, leftovers = @mutex.synchronize { due || (@thread = nil) }
        return unless locks

        renew(locks)
        write(locks)
        release_again(leftovers)
      rescue Etcd::Overdue
        next # Timeout of Ruby 3.1 may raise after its call, which would end this thread
      end
    end

    # Waits until something is to be done. Returns nil if there has been nothing for a while.
    def due
      @wakes = next_at
      idle = @wakes.infinite? && @locks.empty?
      @changed.wait(@mutex, [[@wakes - monotonic, idle ? IDLE : SILENCE].min, 0.001].max)
      return if idle && next_at.infinite? && @locks.empty?

      @wakes = 0 # no need to wake it
      [@locks.keys, @leftovers.select { |_, (at, _)| at <= monotonic }.keys]
    end

    # When something is to be done. Forgets the locks that have ended.
    def next_at
      @locks.delete_if { |lock, _| lock.lost? }
      @leftovers.keep_if { |lock, _| lock.left? }
      [*@locks.keys.flat_map { |lock| [lock.renew_at, lock.alert_at, lock.answer_at] }, *@leftovers.values.map(&:first), Float::INFINITY].min
    end

    def renew(locks)
      now = monotonic
      locks = locks.reject(&:lost?) # after a suspension they may be
      return if locks.none? { |lock| lock.renew_at <= now }

      # What is due soon goes along. A lock that its holder is renewing need not be renewed here.
      locks = locks.select { |lock| lock.renew_at <= now + lock.terms.patience / 6.0 && lock.renewing.try_lock }
      return if locks.empty?

      begin
        @client.renew(locks, limit: locks.map { |lock| lock.terms.patience }.min / 3.0, kept: true)
      rescue Error
        locks.each { |lock| lock.renew_at = monotonic + [RETRY, lock.terms.patience / 10.0].min }
      ensure
        locks.each { |lock| lock.renewing.unlock }
      end
    end

    # Writes stacks at alert_at, and answers. A failed answer is not repeated: whoever asked asks again.
    def write(locks)
      now = monotonic
      due = locks.select { |lock| [lock.alert_at, lock.answer_at].min <= now && !lock.lost? }
      alerts = due.select { |lock| lock.alert_at <= now }
      notes = due.map { |lock| lock.note(now) }
      alerts.each { |lock| lock.alert_at = Float::INFINITY }
      @etcd.send_all(notes, now + RETRY) { nil }
    rescue Error
      alerts.each { |lock| lock.alert_at = [lock.alert_at, now + 2 * RETRY].min }
    end

    # Follows the questions to all holders, by one watch, as long as there are locks.
    def listen
      pause = SETTLED
      loop do
        sleep pause
        break unless @mutex.synchronize { @locks.keys.any? { |lock| !lock.lost? } || (@ear = nil) }

        pause = hear ? 0 : RETRY
      rescue Refused => e
        pause = e.code == 7 ? DEAF : RETRY
        warn "unlocker_mutex: no right to read questions under #{@client.questions}: unlocker ask gets no answers from this process" if e.code == 7 && !@deaf
        @deaf ||= e.code == 7
      rescue Error
        pause = RETRY
      end
    end

    # Hears questions for a while. Returns false if the watch failed.
    def hear
      prefix = @client.questions
      last = "#{prefix[0..-2]}0"
      found, revision = @etcd.list(prefix, last)
      asked(found)
      @etcd.watching(prefix, revision, monotonic + SILENCE, last) do |http, events|
        http.read_timeout = SILENCE
        asked(events.reject { |event| event["type"] == "DELETE" }.map { |event| text(event["kv"]["key"]) })
      end
    end

    def asked(keys)
      @mutex.synchronize do
        @locks.each_key do |lock|
          nudge(lock.ask(monotonic)) if keys.include?("#{@client.questions}#{lock.name}//#{lock.uuid}")
        end
      end
    end

    def release_again(locks)
      @etcd.send_all(locks.map(&:removal), monotonic + RETRY) do |n, answer|
        locks[n].late -= 1 if answer.succeeded? && !locks[n].holding
        locks[n].holding = false
      end
    rescue Error
      nil # it is tried again
    ensure
      @mutex.synchronize do
        locks.each { |lock| @leftovers[lock] = [monotonic + @leftovers[lock][1], [2 * @leftovers[lock][1], LONGEST].min] }
      end
    end
  end
  private_constant :Background

  # Requests to etcd's JSON gateway, with failover, login and batches.
  class Etcd # :nodoc:
    include Helpers

    # An endpoint did not answer, or asked to try again; executed says whether it may have done what was asked.
    class Failure < StandardError
      attr_reader :executed

      def initialize(message, executed)
        super(message)
        @executed = executed
      end
    end

    # Not Timeout::Error, so that no code of Net::HTTP rescues it.
    class Overdue < Exception; end

    TROUBLE = [SystemCallError, SocketError, IOError, OpenSSL::SSL::SSLError, Timeout::Error, Net::HTTPBadResponse, Net::ProtocolError, JSON::ParserError, Overdue].freeze

    def initialize(endpoints, user, password, tls, timeout)
      @endpoints = endpoints.map { |text| endpoint(text) }
      raise ArgumentError, "ca_file and cert_file need endpoints that begin with https://" if (tls[:ca_file] || tls[:cert_file]) && @endpoints.none?(URI::HTTPS)

      @tls = tls
      read_certificate
      @user = user
      @password = password
      @timeout = timeout
      @attempt = [ATTEMPT, timeout.fdiv(endpoints.size.clamp(2, 3))].min
      @current = 0
      @token = user.empty? ? "" : nil # nil: to be asked for; "": none is needed
      @idle = Hash.new { |idle, endpoint| idle[endpoint] = [] }
      @mutex = Mutex.new # guards @idle
    end

    # Executes independent transactions, many in one as far as etcd's limits allow, each within the
    # timeout. Yields the index and the Answer.
    def send_all(txns, end_at = Float::INFINITY, attempt = Float::INFINITY)
      n = -1
      batches(txns).each do |batch|
        body = batch.size == 1 ? batch[0] : { success: batch.map { |txn| { requestTxn: txn } } }
        answer, unanswered = call("/v3/kv/txn", body, [end_at, monotonic + @timeout].min, attempt)
        parts = batch.size == 1 ? [answer] : answer["responses"].map { |response| response["response_txn"] }
        revision, cluster = answer["header"].values_at("revision", "cluster_id")
        parts.each { |part| yield n += 1, Answer.new(part, revision.to_i, cluster, unanswered) }
      end
    end

    # Waits until the key is deleted, or has our own value, or the end, or a while has passed. Returns
    # false if the watch failed. Waiters spread over a moment after the deletion. Those that see the next holder in time
    # do not try, so that a release does not make all of them send a request.
    def watch(key, own, revision, end_at)
      until_at = [end_at, monotonic + SILENCE * rand(1.0..1.25)].min
      watching(key, revision, until_at) do |http, events|
        if events.last && events.last["type"] == "DELETE"
          http.read_timeout = rand(0.001..JITTER)
        elsif events.last && events.last["kv"]["value"] == b64(own)
          return true # by an attempt without an answer
        else
          until_at = [until_at, end_at - LAST].min if events.any? # to say in the end who holds it
          http.read_timeout = [until_at - monotonic, 0.001].max
        end
      end
    end

    # The keys of a range, and the revision.
    def list(key, range_end)
      answer, = call("/v3/kv/range", { key: b64(key), rangeEnd: b64(range_end), keysOnly: true }, monotonic + @timeout, Float::INFINITY)
      [(answer["kvs"] || []).map { |kv| text(kv["key"]) }, answer["header"]["revision"].to_i]
    end

    # Yields the connection and the events of a watch of a key, or of a range, after a revision. Returns true when its
    # time or the read_timeout of the connection is over, and false if the watch failed.
    def watching(key, revision, until_at, range_end = nil)
      endpoint = @endpoints[@current]
      streaming = false
      Timeout.timeout([until_at - monotonic, 0.001].max, Overdue) do
        follow(endpoint, key, revision, [until_at, monotonic + @attempt].min, range_end) do |http, events|
          streaming = true
          yield http, events
        end
      end
      false
    rescue Net::ReadTimeout, Overdue
      advance(endpoint) unless streaming
      streaming
    rescue Failure, *TROUBLE
      advance(endpoint)
      false
    end

    def close
      @mutex.synchronize { @idle.each_value { |list| discard(*list.shift(list.size).map(&:last)) } }
    end

    private

    def endpoint(text)
      url = URI.parse(text.include?("://") ? text : "http://#{text}")
      raise URI::InvalidURIError unless url.is_a?(URI::HTTP) && url.hostname.to_s != "" && ["", "/"].include?(url.path) && !url.query && !url.userinfo

      url.port = 2379 unless text.match?(/:\d+\/?\z/)
      url
    rescue URI::InvalidURIError
      raise ArgumentError, "endpoint #{text.inspect} is not a URL of the form https://host:port"
    end

    def read_certificate
      raise ArgumentError, "ca_file #{@tls[:ca_file].inspect} cannot be read" unless @tls[:ca_file].nil? || File.readable?(@tls[:ca_file])
      return unless @tls[:cert_file]

      pem = File.read(@tls[:cert_file])
      @certificates = pem.scan(/-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----/m).map { |text| OpenSSL::X509::Certificate.new(text) }
      @key = OpenSSL::PKey.read(@tls[:key_file] ? File.read(@tls[:key_file]) : pem)
    end

    # Repeats the request until it is answered. Returns also how many attempts before were not, and may have been executed.
    def call(path, body, end_at, attempt)
      renewed = false
      failures = unanswered = 0
      failed = nil
      loop do
        endpoint = @endpoints[@current]
        deadline = [end_at, monotonic + [attempt, @attempt].min].min
        begin
          return [exchange(endpoint, request(path, body, headers(endpoint, deadline)), deadline), unanswered]
        rescue Failure => e
          unanswered += 1 if e.executed
          failed = telling(failed, e)
        rescue Refused => e
          e.unanswered = unanswered
          raise if renewed || @user.empty? || !unauthenticated?(e)

          @token = nil
          renewed = true
          next
        end
        advance(endpoint)
        failures += 1
        pause = failures < [2, @endpoints.size].max ? 0 : rand(0.05..0.1) * [failures, 10].min
        if monotonic + pause >= end_at
          raise Unreachable.new("etcd does not answer: #{failed.message}").tap { |e| e.unanswered = unanswered }, cause: failed.cause
        end

        sleep(pause)
      end
    end

    def advance(failed)
      @current = (@current + 1) % @endpoints.size if @endpoints[@current].equal?(failed)
    end

    def request(path, body, headers)
      Net::HTTP::Post.new(path, { "Content-Type" => "application/json", "Accept-Encoding" => "identity", **headers }).tap { |post| post.body = JSON.generate(body) }
    end

    def headers(endpoint, deadline)
      token = @token
      if token.nil?
        begin
          token = exchange(endpoint, request("/v3/auth/authenticate", { name: @user, password: @password }, {}), deadline)["token"]
        rescue Refused => e
          raise unless e.message.include?("authentication is not enabled")

          token = ""
        rescue Failure => e
          raise Failure.new(e.message, false), cause: e.cause
        end
        @token = token
      end
      token.empty? ? {} : { "Authorization" => token }
    end

    # Yields the connection and the events after the revision of each answer, until the stream ends.
    def follow(endpoint, key, revision, deadline, range_end)
      body = { createRequest: { key: b64(key), startRevision: revision.to_s, **(range_end ? { rangeEnd: b64(range_end) } : {}) } }
      # Without a leader the stream must end, not fall silent.
      post = request("/v3/watch", body, headers(endpoint, deadline).merge("Grpc-Metadata-Hasleader" => "true"))
      http = connect(endpoint, deadline)
      buffer = +""
      http.request(post) do |response|
        return unless response.code == "200"

        response.read_body do |chunk|
          buffer << chunk
          while (line = buffer.slice!(/\A.*\n/))
            result = JSON.parse(line)["result"]
            return if result.nil? || result["canceled"]

            yield http, (result["events"] || []).select { |event| event["kv"]["mod_revision"].to_i > revision }
          end
        end
      end
    ensure
      discard(http)
    end

    # Makes one attempt at one endpoint. Net::HTTP does not retry.
    def exchange(endpoint, post, deadline)
      http = nil
      connected = done = fresh = false
      remaining = deadline - monotonic
      raise Overdue unless remaining.positive?

      status, answer = Timeout.timeout(remaining, Overdue) do
        http = idle(endpoint) || ((fresh = true) && connect(endpoint, deadline))
        connected = true
        http.read_timeout = http.write_timeout = remaining
        response = http.request(post)
        [response.code.to_i, object(response)]
      end
      done = true
      judge(endpoint, status, answer)
    rescue *TROUBLE => e
      close # the others are as old
      text = [Overdue, Timeout::Error].any? { |kind| e.is_a?(kind) } ? "timed out" : shown(e.message)
      raise Failure.new("#{endpoint}: #{text}#{hint(e, endpoint) if fresh}", connected)
    ensure
      done ? @mutex.synchronize { @idle[endpoint] << [Process.pid, monotonic, http] } : discard(http)
    end

    # Reads an answer of etcd. Raises JSON::ParserError if it is not one.
    def object(response)
      if response.code == "400" && response.body.start_with?("CommonName of client")
        message = "etcd has authentication enabled, and its JSON gateway then refuses client certificates with a CN: use one without, and user and password"
        return { "code" => 3, "message" => message }
      end

      answer = begin
        JSON.parse(response.body)
      rescue JSON::ParserError
        nil
      end
      return answer if answer.is_a?(Hash) && (response.code != "200" || answer["header"])

      gateway = ", there is no JSON gateway (etcd needs --enable-grpc-gateway)" if response.code == "404"
      raise JSON::ParserError, "not an answer of etcd#{gateway}: HTTP #{response.code}: #{response.body.byteslice(0, 200).scrub.strip}"
    end

    # What may be wrong if a new connection ends without an answer.
    def hint(error, endpoint)
      case error
      when Errno::ECONNRESET, Errno::EPIPE, EOFError, Net::HTTPBadResponse then nil
      when OpenSSL::SSL::SSLError then return unless error.message.match?(/unexpected eof|wrong version/)
      else return
      end
      use = endpoint.is_a?(URI::HTTPS) ? "not use TLS, or ask for a client certificate" : "require https://"
      " (etcd may #{use}, or have its JSON gateway elsewhere: see its --listen-client-http-urls)"
    end

    def judge(endpoint, status, answer)
      return answer if status == 200

      code = answer["code"].to_i
      message = shown((answer["message"] || answer["error"]).to_s)
      raise Failure.new("#{endpoint}: #{message}", true) if status >= 500 || [1, 4].include?(code) || message.include?("too many requests")

      raise Refused.new(code, message)
    end

    def unauthenticated?(refused)
      refused.code == 16 || refused.message.match?(/user name is empty|revision of auth store is old/)
    end

    def connect(endpoint, deadline)
      http = Net::HTTP.new(@tls[:server_name] || endpoint.hostname, endpoint.port, nil) # without a proxy
      http.ipaddr = endpoint.hostname if @tls[:server_name]
      http.max_retries = 0
      http.keep_alive_timeout = 2 * IDLE # it would connect again by itself
      http.open_timeout = http.ssl_timeout = http.read_timeout = http.write_timeout = [deadline - monotonic, 0.001].max
      if endpoint.is_a?(URI::HTTPS)
        http.use_ssl = true
        http.ca_file = @tls[:ca_file]
        http.cert, *http.extra_chain_cert = @certificates if @certificates
        http.key = @key
      end
      http.start
    end

    # The connections of the parent of a fork are dropped, not closed: a close would be sent.
    def idle(endpoint)
      @mutex.synchronize do
        while (process, since, http = @idle[endpoint].pop)
          next unless process == Process.pid
          return http if monotonic - since < IDLE && http.started?

          discard(http)
        end
      end
    end

    def discard(*connections)
      connections.each do |http|
        http.finish if http&.started?
      rescue *TROUBLE
        nil
      end
    end

    def batches(txns)
      most = size = 0
      txns.each_with_object([[]]) do |txn, batches|
        ops = [txn[:success].size, txn[:failure].size].max
        length = JSON.generate(txn).size
        if batches.last.any? && (batches.last.size + 1 + [most, ops].max > MAX_OPS || size + length > MAX_BYTES)
          batches << []
          most = size = 0
        end
        batches.last << txn
        most = [most, ops].max
        size += length
      end.reject(&:empty?)
    end
  end
  private_constant :Etcd
end
